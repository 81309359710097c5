// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package imagecredentials asks image credential providers for the logins that pull images, as kubelet does (KEP-2133, KEP-4412). A
// provider is a program of the node: it reads a CredentialProviderRequest of credentialprovider.kubelet.k8s.io from its standard input, and
// writes a CredentialProviderResponse to its standard output.
//
//	imagecredentials.go  Providers: which there are, and the reload of their configuration
//	config.go            the configuration: CredentialProviderConfig, its checks
//	provider.go          one provider: which images and pods it is for, its cache
//	exec.go              one call of its program
//	redact.go            what of its standard error may be shown
//	cache.go             logins and service account tokens that are used again
//	metrics.go           kubelet's metrics of all this
//
// A provider that fails is an event of the pod; the pull goes on with the credentials that there are. [Providers.Watch] reloads the
// configuration when its files change. A configuration that is not valid changes nothing: the providers that there were stay.
//
// Providers are safe for concurrent use.
package imagecredentials

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sync/atomic"

	"github.com/fsnotify/fsnotify"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	configv1 "k8s.io/kubelet/config/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/credentialprovider"
)

// Reasons of the events that this package records.
const (
	reasonFailed  = "FailedCredentialProvider"        // of a pod: a provider failed
	reasonInvalid = "InvalidCredentialProviderConfig" // of the node: the configuration's new version is not valid
)

// Accounts reads service accounts and makes their tokens.
type Accounts interface {
	ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	Token(ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
}

// Options configure Providers. All fields are required.
type Options struct {
	Config   string // the file, or the directory of files, of the configuration: --image-credential-provider-config
	BinDir   string // the directory of the programs: --image-credential-provider-bin-dir
	Tokens   bool   // whether providers may have service account tokens: KubeletServiceAccountTokenForCredentialProviders
	Accounts Accounts
	Ledger   *extension.Ledger
	Node     *corev1.ObjectReference // the object of events that do not belong to a pod
	Events   record.EventRecorder
	Metrics  *Metrics
	Clock    clock.PassiveClock
	Logger   *slog.Logger
}

// Providers are the node's providers.
type Providers struct {
	Options
	tokens *tokens
	all    atomic.Pointer[[]*provider] // in the order of the configuration
	// The hash of the configuration in effect, and the text of the last invalid one's error. Only Open and Watch's goroutine use them.
	hash, last string
}

// Open reads the configuration. A missing program is an error.
func Open(o Options) (*Providers, error) {
	if _, err := os.Stat(o.BinDir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("plugin binary directory %s did not exist", o.BinDir) // upstream's words
		}
		return nil, fmt.Errorf("error inspecting binary directory %s: %w", o.BinDir, err) // upstream's words
	}
	p := &Providers{Options: o, tokens: newTokens(o.Accounts, o.Clock.Now)}
	p.all.Store(&[]*provider{})
	return p, p.load()
}

// load reads the configuration, and puts it into effect if all of it is valid. A provider that has not changed keeps its cache.
func (p *Providers) load() error {
	configs, hash, err := load(p.Config)
	if err != nil {
		return err
	}
	if err := validate(configs, p.Tokens); err != nil {
		return err
	}
	before := map[string]*provider{}
	for _, had := range *p.all.Load() {
		before[had.config.Name] = had
	}
	var all []*provider
	where := map[string]string{}
	for _, c := range configs {
		called, err := newCaller(p.BinDir, c)
		if err != nil {
			return err
		}
		where[c.Name] = p.Config
		if had := before[c.Name]; had != nil && reflect.DeepEqual(had.config, c) {
			all = append(all, had)
			continue
		}
		all = append(all, p.make(c, called))
	}
	p.Ledger.RegisterAll(extension.ImageCredentials, where)
	p.Metrics.configured(hash)
	p.all.Store(&all)
	if p.hash != "" && hash != p.hash {
		p.Logger.Info("Reloaded the image credential providers", "config", p.Config, "providers", len(all))
	}
	p.hash = hash
	return nil
}

func (p *Providers) make(c configv1.CredentialProvider, called *caller) *provider {
	return &provider{
		Options: p.Options, config: c, ref: extension.Ref{Point: extension.ImageCredentials, Name: c.Name}, caller: called,
		tokens: p.tokens, cache: newCache(),
	}
}

// Lookup returns the credentials for the pod's image, the most specific first. A provider that fails has an event, and no credentials.
func (p *Providers) Lookup(ctx context.Context, pod *corev1.Pod, image string) ([]credentialprovider.Credential, error) {
	repository, err := credentialprovider.Repository(image)
	if err != nil {
		return nil, err
	}
	keyring := &credentialprovider.Keyring{}
	ctx = extension.Calling(extension.For(ctx, pod.Namespace, pod.Name), repository)
	for _, one := range *p.all.Load() {
		logins, account, err := one.lookup(ctx, pod, repository)
		switch {
		case err == nil:
			keyring.AddLogins(logins, account)
		case ctx.Err() == nil:
			p.Events.Event(pod, corev1.EventTypeWarning, reasonFailed, describe(one.config.Name, repository, err))
			p.Logger.Warn("A credential provider failed, pulling the image without it",
				"provider", one.config.Name, "image", repository, "pod", pod.Namespace+"/"+pod.Name, "err", err)
		}
	}
	return keyring.Lookup(image)
}

// describe returns an event's text: the provider's name, its exit code if its program ended with one, and its redacted standard error.
func describe(name, image string, err error) string {
	said := ""
	if failed := (*failure)(nil); errors.As(err, &failed) {
		err = failed.err
		if failed.stderr != "" {
			said = ": " + failed.stderr
		}
	}
	var exited *exec.ExitError
	switch {
	case errors.As(err, &exited) && exited.ExitCode() >= 0:
		return fmt.Sprintf("Credential provider %s failed for image %s with exit code %d%s", name, image, exited.ExitCode(), said)
	case errors.As(err, &exited):
		return fmt.Sprintf("Credential provider %s failed for image %s: %v%s", name, image, exited, said)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("Credential provider %s failed for image %s: it did not answer within a minute%s", name, image, said)
	}
	return fmt.Sprintf("Credential provider %s failed for image %s: %v", name, image, err)
}

// Watch reloads the configuration when its files change, until ctx is done.
func (p *Providers) Watch(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch credential provider configuration: %w", err)
	}
	defer watcher.Close()
	// The directory of a file too: editors and config maps replace the file, or a link on the way to it.
	dir := p.Config
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		dir = filepath.Dir(dir)
	}
	if err := watcher.Add(dir); err != nil {
		return fmt.Errorf("watch credential provider configuration: %w", err)
	}
	p.reload() // what changed before the watch
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Events:
		case <-watcher.Errors: // events were lost
		}
		p.reload()
	}
}

// reload puts the configuration into effect, or says once why it does not.
func (p *Providers) reload() {
	err := p.load()
	if err == nil {
		p.last = ""
		return
	}
	if text := err.Error(); text != p.last {
		p.last = text
		p.Logger.Warn("Kept the previous credential providers, because their new configuration is not valid", "config", p.Config, "err", err)
		p.Events.Event(p.Node, corev1.EventTypeWarning, reasonInvalid,
			fmt.Sprintf("Kept the previous image credential providers, because %s is not valid: %v", p.Config, err))
	}
}
