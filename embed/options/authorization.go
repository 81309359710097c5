// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"time"

	"github.com/spf13/pflag"
)

// Authorization configures the authorizers. The group system:masters may do everything in any case.
type Authorization struct {
	// Modes are the authorizers in order: Node, RBAC, ABAC, Webhook, AlwaysAllow, AlwaysDeny. Empty: Node, RBAC.
	Modes []string
	// ConfigFile is an AuthorizationConfiguration, which replaces Modes. The server reads it again when it changes.
	ConfigFile string
	// PolicyFile is the file of the mode ABAC: one policy per line.
	PolicyFile string

	Webhook AuthorizationWebhook
}

// AuthorizationWebhook is the webhook of the mode Webhook.
type AuthorizationWebhook struct {
	// ConfigFile is a kubeconfig: the cluster is the webhook, the user is this server.
	ConfigFile string
	// Version of the SubjectAccessReview: v1 or v1beta1 (when empty).
	Version string
	// AuthorizedTTL and UnauthorizedTTL are how long the server caches answers; nil: five minutes and 30 seconds.
	AuthorizedTTL, UnauthorizedTTL *time.Duration
}

// Set reports whether any of the fields is set.
func (o *AuthorizationWebhook) Set() bool {
	return o.ConfigFile != "" || o.Version != "" || o.AuthorizedTTL != nil || o.UnauthorizedTTL != nil
}

func (o *Authorization) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.Modes, "authorization-mode", o.Modes,
		"Ordered list of authorizers: Node, RBAC, ABAC, Webhook, AlwaysAllow, AlwaysDeny. Default: Node,RBAC.")
	f.StringVar(&o.ConfigFile, "authorization-config", o.ConfigFile,
		"File of an AuthorizationConfiguration. Excludes --authorization-mode and --authorization-webhook-*. The server reloads it when it changes.")
	f.StringVar(&o.PolicyFile, "authorization-policy-file", o.PolicyFile, "File of policies for the mode ABAC, one JSON object per line.")
	f.StringVar(&o.Webhook.ConfigFile, "authorization-webhook-config-file", o.Webhook.ConfigFile,
		"File of a kubeconfig of the webhook for the mode Webhook.")
	f.StringVar(&o.Webhook.Version, "authorization-webhook-version", o.Webhook.Version,
		"API version of the SubjectAccessReview sent to the webhook: v1 or v1beta1. Default: v1beta1.")
	f.Var(&span{&o.Webhook.AuthorizedTTL, 5 * time.Minute}, "authorization-webhook-cache-authorized-ttl",
		"Time for which the server caches authorized answers of the webhook.")
	f.Var(&span{&o.Webhook.UnauthorizedTTL, 30 * time.Second}, "authorization-webhook-cache-unauthorized-ttl",
		"Time for which the server caches unauthorized answers of the webhook.")
}
