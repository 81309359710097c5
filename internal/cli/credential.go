// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/internal/credential"
)

const credentialUsage = `Usage:
  mortise credential service-account NAME [--kubeconfig FILE] [--context NAME] [--namespace NAMESPACE] [--audience AUDIENCE]... [--duration 1h]
  mortise credential file PATH
  mortise credential oidc --issuer URL --client-id ID --refresh-token-file FILE [--client-secret-file FILE] [--certificate-authority FILE] [--scope SCOPE]...

Prints an ExecCredential, for users[].user.exec of a kubeconfig; see docs/authentication.md.
`

// runCredential prints a token for a client that runs it as its exec credential plug-in.
func runCredential(ctx context.Context, p Program, args []string) int {
	if len(args) == 0 {
		fmt.Fprint(p.Err, credentialUsage)
		return 2
	}
	f := pflag.NewFlagSet("credential "+args[0], pflag.ContinueOnError)
	f.SetOutput(p.Err)
	f.Usage = func() {
		fmt.Fprint(f.Output(), credentialUsage+"\nFlags:\n"+f.FlagUsages())
	}
	cacheDir := f.String("cache-dir", defaultCache(), "Directory of the token cache.")
	fresh := f.Bool("no-cache", false, "Request a new token each time, and cache none.")
	var source func(rest []string) (credential.Source, error)
	switch args[0] {
	case "service-account":
		source = serviceAccountFlags(f)
	case "file":
		source = func(rest []string) (credential.Source, error) {
			path, err := one(rest, "a path")
			return &credential.File{Path: path}, err
		}
	case "oidc":
		source = oidcFlags(f)
	case "help", "-h", "--help":
		fmt.Fprint(p.Out, credentialUsage)
		return 0
	default:
		fmt.Fprintf(p.Err, "mortise credential: %q: want service-account, file or oidc\n", args[0])
		return 2
	}
	if code, done := parse(p, f, "credential "+args[0], args[1:]); done {
		return code
	}
	s, err := source(f.Args())
	if err != nil {
		fmt.Fprintf(p.Err, "mortise credential %s: %v\n", args[0], err)
		return 2
	}
	c := credential.Cache{Dir: *cacheDir, Now: time.Now, Client: os.Getppid()}
	if *fresh {
		c.Dir = ""
	}
	t, notKept, err := c.Get(ctx, s)
	if err != nil {
		return fail(p, fmt.Errorf("credential: %w", err))
	}
	if notKept != nil {
		fmt.Fprintf(p.Err, "mortise: credential: could not cache the token: %v\n", notKept)
	}
	if err := credential.Answer(p.Out, os.Getenv(credential.ExecInfo), t); err != nil {
		return fail(p, fmt.Errorf("credential: %w", err))
	}
	return 0
}

// defaultCache returns the directory of cached tokens. It is empty if the user has no cache directory: then nothing is cached.
func defaultCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "mortise", "credential")
}

func one(args []string, what string) (string, error) {
	if len(args) != 1 {
		return "", fmt.Errorf("want %s, got %d arguments", what, len(args))
	}
	return args[0], nil
}

func serviceAccountFlags(f *pflag.FlagSet) func(rest []string) (credential.Source, error) {
	s := &credential.ServiceAccount{}
	f.StringVar(&s.Kubeconfig, "kubeconfig", "", "File of a kubeconfig whose user may create tokens of the account.")
	f.StringVar(&s.Context, "context", "", "Context of the kubeconfig.")
	f.StringVarP(&s.Namespace, "namespace", "n", "", "Namespace of the account. Default: the context's.")
	f.StringArrayVar(&s.Audiences, "audience", nil, "Audience of the token. May be repeated. Default: the API server.")
	f.DurationVar(&s.Duration, "duration", 0, "Validity of the token. Default: the server's.")
	return func(rest []string) (credential.Source, error) {
		var err error
		if s.Account, err = one(rest, "the name of an account"); err != nil {
			return nil, err
		}
		if s.Duration < 0 || s.Duration%time.Second != 0 {
			return nil, fmt.Errorf("--duration %s: want whole seconds", s.Duration)
		}
		return s, nil
	}
}

func oidcFlags(f *pflag.FlagSet) func(rest []string) (credential.Source, error) {
	o := &credential.OIDC{}
	f.StringVar(&o.Issuer, "issuer", "", "URL of the issuer. The scheme must be https.")
	f.StringVar(&o.ClientID, "client-id", "", "Client ID of the refresh token.")
	f.StringVar(&o.ClientSecretFile, "client-secret-file", "", "File of the client secret. Empty for a public client.")
	f.StringVar(&o.RefreshTokenFile, "refresh-token-file", "", "File of the refresh token. Replaced when the issuer returns a new token.")
	f.StringVar(&o.CAFile, "certificate-authority", "",
		"File of the certificate authority of the issuer. Default: the host's root certificates.")
	f.StringArrayVar(&o.Scopes, "scope", nil, "Scope to request. May be repeated. Default: the scopes of the refresh token.")
	return func(rest []string) (credential.Source, error) {
		if len(rest) > 0 {
			return nil, fmt.Errorf("unexpected argument %q", rest[0])
		}
		for flag, v := range map[string]string{"issuer": o.Issuer, "client-id": o.ClientID, "refresh-token-file": o.RefreshTokenFile} {
			if v == "" {
				return nil, fmt.Errorf("--%s is missing", flag)
			}
		}
		return o, nil
	}
}
