// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package modes makes the chain of authorizers that an administrator configures, by kube-apiserver's flags or by an
// AuthorizationConfiguration, and follows the file.
//
// [Load] reads and validates everything before anything starts. [Settings.Build] makes the [Chain]. [Chain.Run] reads
// the file again when it changes; an invalid file is logged and counted, and changes nothing. A reload can add and
// remove webhooks. It can neither add nor remove the types that need data from the start: the graph of nodes, the
// roles, the policies.
package modes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authorization/cel"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/abac"
)

// The modes, which are types of authorizers in a configuration.
const (
	AlwaysAllow = "AlwaysAllow"
	AlwaysDeny  = "AlwaysDeny"
	ABAC        = "ABAC"
	Webhook     = "Webhook"
	RBAC        = "RBAC"
	Node        = "Node"
)

// Modes returns all modes in upstream's order.
func Modes() []string { return []string{AlwaysAllow, AlwaysDeny, ABAC, Webhook, RBAC, Node} }

// Settings are the authorization options, read and validated.
type Settings struct {
	config   *apiserver.AuthorizationConfiguration
	file     string // empty: configured by flags
	data     []byte // of the file
	policies abac.Policies
	oldLines int // lines of the policy file in the old form without versions
	policy   string
	compiler func() cel.Compiler
}

// Has reports whether an authorizer of a type is in the initial chain.
func (s *Settings) Has(mode string) bool {
	return slices.ContainsFunc(s.config.Authorizers, func(a apiserver.AuthorizerConfiguration) bool { return string(a.Type) == mode })
}

// Load reads and validates the settings in o. decode decodes a line of the ABAC policy file.
func Load(o options.Authorization, decode abac.Decode) (*Settings, error) {
	s := &Settings{file: o.ConfigFile, policy: o.PolicyFile, compiler: onceCompiler()}
	var err error
	if o.ConfigFile == "" {
		s.config, err = fromFlags(o)
	} else {
		if len(o.Modes) > 0 || o.Webhook.Set() {
			// upstream's words
			return nil, errors.New("--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined")
		}
		if s.data, err = os.ReadFile(o.ConfigFile); err == nil {
			s.config, err = s.parse(s.data, nil)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("authorization: %w", err)
	}
	if s.Has(ABAC) {
		if s.policies, s.oldLines, err = abac.Read(o.PolicyFile, decode); err != nil {
			return nil, fmt.Errorf("authorization: %w", err)
		}
	}
	for _, a := range s.config.Authorizers {
		if a.Webhook == nil {
			continue
		}
		if _, err := webhookutil.LoadKubeconfig(*a.Webhook.ConnectionInfo.KubeConfigFile, nil); err != nil {
			return nil, fmt.Errorf("authorization webhook %s: %w", a.Name, err)
		}
	}
	return s, nil
}

// onceCompiler returns a function that makes the compiler of match conditions at its first call, because that is
// expensive.
func onceCompiler() func() cel.Compiler {
	var c cel.Compiler
	return func() cel.Compiler {
		if c == nil {
			c = cel.NewDefaultCompiler()
		}
		return c
	}
}

// fromFlags converts the flags to a configuration. The errors are upstream's words.
func fromFlags(o options.Authorization) (*apiserver.AuthorizationConfiguration, error) {
	modes := o.Modes
	if len(modes) == 0 {
		modes = []string{Node, RBAC}
	}
	var errs []error
	for _, m := range modes {
		switch {
		case !slices.Contains(Modes(), m):
			errs = append(errs, fmt.Errorf("authorization-mode %q is not a valid mode", m))
		case m == ABAC && o.PolicyFile == "":
			errs = append(errs, errors.New("authorization-mode ABAC's authorization policy file not passed"))
		case m == Webhook && o.Webhook.ConfigFile == "":
			errs = append(errs, errors.New("authorization-mode Webhook's authorization config file not passed"))
		}
	}
	if o.PolicyFile != "" && !slices.Contains(modes, ABAC) {
		errs = append(errs, errors.New("cannot specify --authorization-policy-file without mode ABAC"))
	}
	if o.Webhook.ConfigFile != "" && !slices.Contains(modes, Webhook) {
		errs = append(errs, errors.New("cannot specify --authorization-webhook-config-file without mode Webhook"))
	}
	if len(slices.Compact(slices.Sorted(slices.Values(modes)))) != len(modes) {
		errs = append(errs, fmt.Errorf("authorization-mode %q has mode specified more than once", modes))
	}
	if v := o.Webhook.Version; v != "" && v != "v1" && v != "v1beta1" {
		errs = append(errs, fmt.Errorf("unsupported webhook authorizer version %q, supported versions are \"v1\", \"v1beta1\"", v))
	}
	if err := utilerrors.NewAggregate(errs); err != nil {
		return nil, err
	}
	c := &apiserver.AuthorizationConfiguration{}
	for _, m := range modes {
		a := apiserver.AuthorizerConfiguration{Type: apiserver.AuthorizerType(m), Name: strings.ToLower(m)}
		if m == Webhook {
			a.Name, a.Webhook = "default", fromWebhookFlags(o.Webhook)
		}
		c.Authorizers = append(c.Authorizers, a)
	}
	return c, nil
}

func fromWebhookFlags(o options.AuthorizationWebhook) *apiserver.WebhookConfiguration {
	ttl := func(d *time.Duration, without time.Duration) time.Duration {
		if d == nil {
			return without
		}
		return *d
	}
	version := o.Version
	if version == "" {
		version = "v1beta1"
	}
	authorized, unauthorized := ttl(o.AuthorizedTTL, 5*time.Minute), ttl(o.UnauthorizedTTL, 30*time.Second)
	return &apiserver.WebhookConfiguration{
		AuthorizedTTL: metav1.Duration{Duration: authorized}, CacheAuthorizedRequests: authorized != 0,
		UnauthorizedTTL: metav1.Duration{Duration: unauthorized}, CacheUnauthorizedRequests: unauthorized != 0,
		Timeout: metav1.Duration{Duration: 30 * time.Second}, FailurePolicy: apiserver.FailurePolicyNoOpinion,
		SubjectAccessReviewVersion: version,
		ConnectionInfo: apiserver.WebhookConnectionInfo{Type: apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile,
			KubeConfigFile: &o.ConfigFile},
	}
}

// parse parses an AuthorizationConfiguration, and rejects one without an authorizer of each required type. The errors
// are upstream's words.
func (s *Settings) parse(data []byte, required []string) (*apiserver.AuthorizationConfiguration, error) {
	c, err := load.LoadFromData(data)
	if err != nil {
		return nil, fmt.Errorf("failed to load AuthorizationConfiguration from file: %w", err) // upstream's words
	}
	if errs := validation.ValidateAuthorizationConfiguration(s.compiler(), nil, c, sets.New(Modes()...), sets.New(Webhook)); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	var errs []error
	missing := sets.New(required...)
	for _, a := range c.Authorizers {
		if a.Type == Webhook {
			continue
		}
		missing.Delete(string(a.Type))
		if want := strings.ToLower(string(a.Type)); a.Name != want {
			errs = append(errs, fmt.Errorf("expected name %s for authorizer %s instead of %s", want, a.Type, a.Name))
		}
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("missing required types: %v", sets.List(missing)))
	}
	return c, utilerrors.NewAggregate(errs)
}
