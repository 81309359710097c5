// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"time"

	"github.com/spf13/pflag"
)

// Authentication says who asks. What is nil or empty is as kube-apiserver has it without the flag, save that a cluster of
// ours brings a client CA, a front-proxy CA and a service-account key of its own.
type Authentication struct {
	// ConfigFile is an AuthenticationConfiguration: JWT issuers, and who may be anonymous where. It is read again when it changes.
	ConfigFile string
	// Anonymous lets those in who show no credential; nil: it does.
	Anonymous *bool
	// APIAudiences are what tokens must be meant for; empty: the issuers of service-account tokens.
	APIAudiences []string
	// BootstrapTokens takes the tokens of secrets of the type bootstrap.kubernetes.io/token in kube-system.
	BootstrapTokens bool
	// ClientCAFile holds authorities of client certificates beside our own. It is read again when it changes.
	ClientCAFile string
	// TokenFile is a CSV file: token, user, uid, groups.
	TokenFile string

	RequestHeader   RequestHeader
	OIDC            OIDC
	ServiceAccounts ServiceAccounts
	TokenWebhook    TokenWebhook
}

// RequestHeader trusts a proxy in front that has authenticated the user. Without a ClientCAFile it is the cluster's own
// front-proxy authority, as package bootstrap publishes it.
type RequestHeader struct {
	ClientCAFile     string // read again when it changes
	AllowedNames     []string
	UsernameHeaders  []string
	UIDHeaders       []string
	GroupHeaders     []string
	ExtraHeaderNames []string // prefixes
}

// OIDC is one issuer of ID tokens, by flags.
type OIDC struct {
	IssuerURL, ClientID, CAFile   string
	UsernameClaim, UsernamePrefix string // claim: empty is sub
	GroupsClaim, GroupsPrefix     string
	SigningAlgs                   []string // empty: RS256
	RequiredClaims                map[string]string
}

// Set says whether any of the settings was made.
func (o *OIDC) Set() bool {
	return o.IssuerURL != "" || o.ClientID != "" || o.CAFile != "" || o.UsernameClaim != "" || o.UsernamePrefix != "" ||
		o.GroupsClaim != "" || o.GroupsPrefix != "" || len(o.SigningAlgs) > 0 || len(o.RequiredClaims) > 0
}

// ServiceAccounts says how the tokens of service accounts are signed and verified.
type ServiceAccounts struct {
	// KeyFiles hold public or private keys that tokens are verified with, PEM. Empty: the signing key.
	KeyFiles []string
	// SigningKeyFile is the private key that tokens are signed with; empty: the cluster's own.
	SigningKeyFile string
	// SigningEndpoint is the socket of an external signer; it excludes both key files.
	SigningEndpoint string
	// Issuers are whose tokens are taken; the first signs. Empty: https://kubernetes.default.svc.cluster.local.
	Issuers []string
	// JWKSURI is where the discovery document says that the keys are.
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
	f.StringVar(&o.ConfigFile, "authentication-config", o.ConfigFile, "file with an AuthenticationConfiguration: JWT issuers and anonymous access; read again when it changes")
	f.StringSliceVar(&o.APIAudiences, "api-audiences", o.APIAudiences, "audiences that tokens must be meant for; default: the service-account issuers")
	addSwitch(f, &o.Anonymous, "anonymous-auth", true, "let those in as system:anonymous who show no credential")
	f.BoolVar(&o.BootstrapTokens, "enable-bootstrap-token-auth", o.BootstrapTokens, "take the tokens of secrets of type bootstrap.kubernetes.io/token in kube-system")
	f.StringVar(&o.ClientCAFile, "client-ca-file", o.ClientCAFile, "authorities of client certificates, beside the cluster's own")
	f.StringVar(&o.TokenFile, "token-auth-file", o.TokenFile, "CSV file of tokens: token,user,uid,\"groups\"")
	f.StringVar(&o.TokenWebhook.ConfigFile, "authentication-token-webhook-config-file", o.TokenWebhook.ConfigFile, "kubeconfig of a webhook that is asked whose a token is")
	f.StringVar(&o.TokenWebhook.Version, "authentication-token-webhook-version", o.TokenWebhook.Version, "version of the TokenReview to send to the webhook; default v1beta1")
	f.Var(&span{&o.TokenWebhook.CacheTTL, 2 * time.Minute}, "authentication-token-webhook-cache-ttl", "how long the webhook's answers are kept")
	o.RequestHeader.addFlags(f)
	o.OIDC.addFlags(f)
	o.ServiceAccounts.addFlags(f)
}

func (o *RequestHeader) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ClientCAFile, "requestheader-client-ca-file", o.ClientCAFile, "authorities of the front proxies whose headers name the user; default: the cluster's own front-proxy authority")
	f.StringSliceVar(&o.AllowedNames, "requestheader-allowed-names", o.AllowedNames, "common names of the front proxies' certificates; none: all of the authorities'")
	f.StringSliceVar(&o.UsernameHeaders, "requestheader-username-headers", o.UsernameHeaders, "headers that name the user")
	f.StringSliceVar(&o.UIDHeaders, "requestheader-uid-headers", o.UIDHeaders, "headers that tell the user's uid")
	f.StringSliceVar(&o.GroupHeaders, "requestheader-group-headers", o.GroupHeaders, "headers that name the user's groups")
	f.StringSliceVar(&o.ExtraHeaderNames, "requestheader-extra-headers-prefix", o.ExtraHeaderNames, "prefixes of the headers that tell more of the user")
}

func (o *OIDC) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.IssuerURL, "oidc-issuer-url", o.IssuerURL, "URL of the OpenID issuer whose tokens are taken, https")
	f.StringVar(&o.ClientID, "oidc-client-id", o.ClientID, "client that the issuer's tokens must be meant for")
	f.StringVar(&o.CAFile, "oidc-ca-file", o.CAFile, "authorities of the issuer's certificate; default: the machine's")
	f.StringVar(&o.UsernameClaim, "oidc-username-claim", o.UsernameClaim, "claim that names the user; default sub")
	f.StringVar(&o.UsernamePrefix, "oidc-username-prefix", o.UsernamePrefix, "what stands before the user's name; default: the issuer's URL and #, unless the claim is email; - is nothing")
	f.StringVar(&o.GroupsClaim, "oidc-groups-claim", o.GroupsClaim, "claim that names the user's groups")
	f.StringVar(&o.GroupsPrefix, "oidc-groups-prefix", o.GroupsPrefix, "what stands before the groups' names")
	f.StringSliceVar(&o.SigningAlgs, "oidc-signing-algs", o.SigningAlgs, "algorithms of signatures that are taken; default RS256")
	f.Var(&pairs{&o.RequiredClaims}, "oidc-required-claim", "KEY=VALUE that a token must claim; may be repeated")
}

func (o *ServiceAccounts) addFlags(f *pflag.FlagSet) {
	f.StringArrayVar(&o.KeyFiles, "service-account-key-file", o.KeyFiles, "PEM file of keys that service-account tokens are verified with; may be repeated")
	f.StringVar(&o.SigningKeyFile, "service-account-signing-key-file", o.SigningKeyFile, "PEM file of the private key that service-account tokens are signed with; default: the cluster's own")
	f.StringVar(&o.SigningEndpoint, "service-account-signing-endpoint", o.SigningEndpoint, "socket of an external signer of service-account tokens")
	f.StringArrayVar(&o.Issuers, "service-account-issuer", o.Issuers, "issuer of service-account tokens; may be repeated, the first signs")
	f.StringVar(&o.JWKSURI, "service-account-jwks-uri", o.JWKSURI, "where the discovery document says that the keys are")
	addSwitch(f, &o.Lookup, "service-account-lookup", true, "take service-account tokens only while the account and what they are bound to exist")
	f.DurationVar(&o.MaxExpiration, "service-account-max-token-expiration", o.MaxExpiration, "longest life of a service-account token")
	addSwitch(f, &o.ExtendExpiration, "service-account-extend-token-expiration", true, "let the tokens that pods get by default live for a year")
}
