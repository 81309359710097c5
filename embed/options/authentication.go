// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"time"

	"github.com/spf13/pflag"
)

// Authentication configures authentication. Nil and empty fields have kube-apiserver's defaults, except that a Mortise cluster has a client
// CA, a front-proxy CA and a service account key of its own.
type Authentication struct {
	// ConfigFile is an AuthenticationConfiguration: JWT issuers, and anonymous access. The server reads it again when it changes.
	ConfigFile string
	// Anonymous authenticates requests without credentials as system:anonymous; nil: true.
	Anonymous *bool
	// APIAudiences are the identifiers of the API; a token must have one of them. Empty: the issuers of service account tokens.
	APIAudiences []string
	// BootstrapTokens accepts the tokens of secrets of the type bootstrap.kubernetes.io/token in kube-system.
	BootstrapTokens bool
	// ClientCAFile has further CAs of client certificates, beside the cluster's own. The server reads it again when it changes.
	ClientCAFile string
	// TokenFile is a CSV file: token, user, uid, groups.
	TokenFile string

	RequestHeader   RequestHeader
	OIDC            OIDC
	ServiceAccounts ServiceAccounts
	TokenWebhook    TokenWebhook
}

// RequestHeader trusts a front proxy that authenticates users. Without a ClientCAFile, it trusts the cluster's own front-proxy CA, which
// package bootstrap publishes.
type RequestHeader struct {
	ClientCAFile     string // the server reads it again when it changes
	AllowedNames     []string
	UsernameHeaders  []string
	UIDHeaders       []string
	GroupHeaders     []string
	ExtraHeaderNames []string // prefixes
}

// OIDC configures one issuer of ID tokens by flags.
type OIDC struct {
	IssuerURL, ClientID, CAFile   string
	UsernameClaim, UsernamePrefix string // UsernameClaim empty: sub
	GroupsClaim, GroupsPrefix     string
	SigningAlgs                   []string // empty: RS256
	RequiredClaims                map[string]string
}

// Set reports whether any of the fields is set.
func (o *OIDC) Set() bool {
	return o.IssuerURL != "" || o.ClientID != "" || o.CAFile != "" || o.UsernameClaim != "" || o.UsernamePrefix != "" ||
		o.GroupsClaim != "" || o.GroupsPrefix != "" || len(o.SigningAlgs) > 0 || len(o.RequiredClaims) > 0
}

// ServiceAccounts configures how service account tokens are signed and verified.
type ServiceAccounts struct {
	// KeyFiles hold public or private keys that tokens are verified with, PEM. Empty: the signing key.
	KeyFiles []string
	// SigningKeyFile is the private key that tokens are signed with; empty: the cluster's own.
	SigningKeyFile string
	// SigningEndpoint is the socket of an external signer; it excludes both key files.
	SigningEndpoint string
	// Issuers are whose tokens are taken; the first signs. Empty: https://kubernetes.default.svc.cluster.local.
	Issuers []string
	// JWKSURI is the URI of the keys in the discovery document.
	JWKSURI string
	// Lookup asks whether the account and what a token is bound to still exist; nil: it does.
	Lookup *bool
	// MaxExpiration bounds the life of tokens; 0: it does not.
	MaxExpiration time.Duration
	// ExtendExpiration lets the tokens that pods get by default live for a year; nil: it does.
	ExtendExpiration *bool
}

// TokenWebhook asks another server whose a token is.
type TokenWebhook struct {
	// ConfigFile is a kubeconfig: the cluster is the webhook, the user is us.
	ConfigFile string
	// Version of the TokenReview: v1 or v1beta1 (when empty).
	Version string
	// CacheTTL is how long answers are kept; nil: two minutes.
	CacheTTL *time.Duration
}

func (o *Authentication) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ConfigFile, "authentication-config", o.ConfigFile,
		"File of an AuthenticationConfiguration: JWT issuers and anonymous access. The server reloads it when it changes.")
	f.StringSliceVar(&o.APIAudiences, "api-audiences", o.APIAudiences,
		"List of identifiers of the API. A token is valid if it is for one of them. Default: the service-account issuers.")
	addSwitch(f, &o.Anonymous, "anonymous-auth", true,
		"Authenticate requests without credentials as the user system:anonymous of the group system:unauthenticated.")
	f.BoolVar(&o.BootstrapTokens, "enable-bootstrap-token-auth", o.BootstrapTokens,
		"Accept Secrets of type bootstrap.kubernetes.io/token in the namespace kube-system as bearer tokens.")
	f.StringVar(&o.ClientCAFile, "client-ca-file", o.ClientCAFile,
		"File of certificate authorities for client certificates, in addition to the cluster's own.")
	f.StringVar(&o.TokenFile, "token-auth-file", o.TokenFile, "CSV file of static tokens, with the columns token,user,uid,\"groups\".")
	f.StringVar(&o.TokenWebhook.ConfigFile, "authentication-token-webhook-config-file", o.TokenWebhook.ConfigFile,
		"File of a kubeconfig of the webhook that reviews bearer tokens.")
	f.StringVar(&o.TokenWebhook.Version, "authentication-token-webhook-version", o.TokenWebhook.Version,
		"API version of the TokenReview sent to the webhook: v1 or v1beta1. Default: v1beta1.")
	f.Var(&span{&o.TokenWebhook.CacheTTL, 2 * time.Minute}, "authentication-token-webhook-cache-ttl",
		"Time for which the server caches answers of the token webhook.")
	o.RequestHeader.addFlags(f)
	o.OIDC.addFlags(f)
	o.ServiceAccounts.addFlags(f)
}

func (o *RequestHeader) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ClientCAFile, "requestheader-client-ca-file", o.ClientCAFile,
		"File of certificate authorities of front proxies whose headers name the user. Default: the cluster's own front-proxy CA.")
	f.StringSliceVar(&o.AllowedNames, "requestheader-allowed-names", o.AllowedNames,
		"List of common names of front-proxy client certificates. Empty allows every name.")
	f.StringSliceVar(&o.UsernameHeaders, "requestheader-username-headers", o.UsernameHeaders,
		"List of request headers to read the user name from.")
	f.StringSliceVar(&o.UIDHeaders, "requestheader-uid-headers", o.UIDHeaders, "List of request headers to read the UID from.")
	f.StringSliceVar(&o.GroupHeaders, "requestheader-group-headers", o.GroupHeaders, "List of request headers to read groups from.")
	f.StringSliceVar(&o.ExtraHeaderNames, "requestheader-extra-headers-prefix", o.ExtraHeaderNames,
		"List of prefixes of request headers to read extra user data from.")
}

func (o *OIDC) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.IssuerURL, "oidc-issuer-url", o.IssuerURL, "URL of the OpenID Connect issuer. The scheme must be https.")
	f.StringVar(&o.ClientID, "oidc-client-id", o.ClientID, "Client ID that the issuer's tokens must be for.")
	f.StringVar(&o.CAFile, "oidc-ca-file", o.CAFile, "File of the certificate authority of the issuer. Default: the host's root certificates.")
	f.StringVar(&o.UsernameClaim, "oidc-username-claim", o.UsernameClaim, "Claim to use as the user name. Default: sub.")
	f.StringVar(&o.UsernamePrefix, "oidc-username-prefix", o.UsernamePrefix,
		"Prefix of user names. - means none. Default: the issuer's URL and #, but none if the claim is email.")
	f.StringVar(&o.GroupsClaim, "oidc-groups-claim", o.GroupsClaim, "Claim to use as the user's groups.")
	f.StringVar(&o.GroupsPrefix, "oidc-groups-prefix", o.GroupsPrefix, "Prefix of groups.")
	f.StringSliceVar(&o.SigningAlgs, "oidc-signing-algs", o.SigningAlgs, "List of signing algorithms to accept. Default: RS256.")
	f.Var(&pairs{&o.RequiredClaims}, "oidc-required-claim", "KEY=VALUE pair that must be a claim of the token. May be repeated.")
}

func (o *ServiceAccounts) addFlags(f *pflag.FlagSet) {
	f.StringArrayVar(&o.KeyFiles, "service-account-key-file", o.KeyFiles,
		"PEM file of keys that verify service-account tokens. May be repeated. Default: the signing key.")
	f.StringVar(&o.SigningKeyFile, "service-account-signing-key-file", o.SigningKeyFile,
		"PEM file of the private key that signs service-account tokens. Default: a key of the cluster's own.")
	f.StringVar(&o.SigningEndpoint, "service-account-signing-endpoint", o.SigningEndpoint,
		"Socket of an external signer of service-account tokens. Excludes the two key file flags.")
	f.StringArrayVar(&o.Issuers, "service-account-issuer", o.Issuers,
		"Issuer of service-account tokens. May be repeated: the first issues tokens, all are accepted.")
	f.StringVar(&o.JWKSURI, "service-account-jwks-uri", o.JWKSURI, "URI of the JSON Web Key Set in the discovery document.")
	addSwitch(f, &o.Lookup, "service-account-lookup", true,
		"Reject service-account tokens whose account, or whose bound object, no longer exists.")
	f.DurationVar(&o.MaxExpiration, "service-account-max-token-expiration", o.MaxExpiration,
		"Maximum validity of a service-account token. 0 means no maximum.")
	addSwitch(f, &o.ExtendExpiration, "service-account-extend-token-expiration", true,
		"Issue the tokens that are injected into pods by default with a validity of one year.")
}
