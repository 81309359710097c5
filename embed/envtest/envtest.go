// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package envtest is controller-runtime's package of the same name, with a cluster in the test's process in place of the binaries of
// etcd and kube-apiserver. A suite changes one import:
//
//	import "github.com/mortise-dev/mortise/embed/envtest" // was sigs.k8s.io/controller-runtime/pkg/envtest
//
//	testEnv := &envtest.Environment{CRDDirectoryPaths: []string{filepath.Join("..", "config", "crd", "bases")}}
//	config, err := testEnv.Start()
//	…
//	err = testEnv.Stop()
//
// The cluster is what envtest has: an API server without controllers, scheduler and nodes. [Environment.Server] selects another one,
// such as &embed.Server{} with all of them.
//
// Fields that find or start binaries have no effect. Flags that ControlPlane.GetAPIServer().Configure() sets are read as
// kube-apiserver's; one that Mortise does not have is an error of Start.
//
// # Stability
//
// The fields and methods are those of controller-runtime's package envtest, in the release that go.mod names, and change with it. A
// committed list of them is compared in a test.
package envtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	upstream "sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/mortise-dev/mortise/embed"
)

// The types of controller-runtime's package that do not depend on its processes.
type (
	// CRDInstallOptions are the options for installing CRDs.
	CRDInstallOptions = upstream.CRDInstallOptions
	// WebhookInstallOptions are the options for installing webhooks.
	WebhookInstallOptions = upstream.WebhookInstallOptions
	// ControlPlane has the API server's flags.
	ControlPlane = upstream.ControlPlane
	// APIServer has the flags; its other fields have no effect.
	APIServer = upstream.APIServer
	// Etcd has no effect.
	Etcd = upstream.Etcd
	// User is a user's name and groups.
	User = upstream.User
	// AuthenticatedUser has a user's configuration, kubeconfig and kubectl.
	AuthenticatedUser = upstream.AuthenticatedUser
	// ListenAddr is where the API server listens. Start sets it, unless both fields are set.
	ListenAddr = upstream.ListenAddr
	// SecureServing has the API server's address and CA, which Start sets, and the authentication of users.
	SecureServing = upstream.SecureServing
	// Authn authenticates the users of AddUser.
	Authn = upstream.Authn
	// Arguments are flags.
	Arguments = upstream.Arguments
	// Arg is a flag's value.
	Arg = upstream.Arg
)

// These constants of controller-runtime's package have no effect.
const (
	StartTimeout = upstream.StartTimeout
	StopTimeout  = upstream.StopTimeout
)

// The functions and variables of controller-runtime's package.
var (
	// EmptyArguments returns no flags.
	EmptyArguments = upstream.EmptyArguments
	// DefaultKubeAPIServerFlags has no effect.
	DefaultKubeAPIServerFlags = upstream.DefaultKubeAPIServerFlags
	// DefaultBinaryAssetsIndexURL has no effect: nothing is downloaded.
	DefaultBinaryAssetsIndexURL = upstream.DefaultBinaryAssetsIndexURL
)

// InstallCRDs installs the CRDs of the options.
func InstallCRDs(config *rest.Config, o CRDInstallOptions) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return upstream.InstallCRDs(config, o)
}

// UninstallCRDs deletes the CRDs of the options.
func UninstallCRDs(config *rest.Config, o CRDInstallOptions) error {
	return upstream.UninstallCRDs(config, o)
}

// CreateCRDs creates the CRDs, or updates those that exist.
func CreateCRDs(config *rest.Config, crds []*apiextensionsv1.CustomResourceDefinition) error {
	return upstream.CreateCRDs(config, crds)
}

// ReadCRDFiles adds the CRDs of the options' files to the options.
func ReadCRDFiles(o *CRDInstallOptions) error { return upstream.ReadCRDFiles(o) }

// WaitForCRDs waits until the CRDs are served.
func WaitForCRDs(config *rest.Config, crds []*apiextensionsv1.CustomResourceDefinition, o CRDInstallOptions) error {
	return upstream.WaitForCRDs(config, crds, o)
}

// WaitForWebhooks waits until the webhooks exist.
func WaitForWebhooks(
	config *rest.Config, mutating []*admissionv1.MutatingWebhookConfiguration, validating []*admissionv1.ValidatingWebhookConfiguration,
	o WebhookInstallOptions,
) error {
	return upstream.WaitForWebhooks(config, mutating, validating, o)
}

// SetupEnvtestDefaultBinaryAssetsDirectory returns where setup-envtest keeps binaries, which are not used.
func SetupEnvtestDefaultBinaryAssetsDirectory() (string, error) {
	return upstream.SetupEnvtestDefaultBinaryAssetsDirectory()
}

// Environment is a cluster for the tests of a suite, with the CRDs and webhooks of its extension. The fields are those of
// controller-runtime's Environment, and Server.
type Environment struct {
	ControlPlane                 ControlPlane
	Scheme                       *runtime.Scheme
	Config                       *rest.Config
	KubeConfig                   []byte
	CRDInstallOptions            CRDInstallOptions
	WebhookInstallOptions        WebhookInstallOptions
	ErrorIfCRDPathMissing        bool
	CRDs                         []*apiextensionsv1.CustomResourceDefinition
	CRDDirectoryPaths            []string
	DownloadBinaryAssets         bool   // no effect
	DownloadBinaryAssetsVersion  string // no effect
	DownloadBinaryAssetsIndexURL string // no effect
	BinaryAssetsDirectory        string // no effect
	UseExistingCluster           *bool
	ControlPlaneStartTimeout     time.Duration // no effect
	ControlPlaneStopTimeout      time.Duration // no effect
	AttachControlPlaneOutput     bool          // no effect; Server.Logger gets the logs

	// Server is the cluster that Start starts; nil: one without controllers, as envtest's. Start applies the flags of ControlPlane to
	// it.
	Server *embed.Server

	// WebhooksInProcess has the API server call the webhooks of WebhookInstallOptions, and those that convert CRDs, in this process:
	// without a port and certificates. Managers of the suite take [Environment.WebhookServer] as their webhook server.
	WebhooksInProcess bool

	state state
}

// state is what Start has made.
type state struct {
	hooks     *WebhookServer // nil: webhooks have a port
	installed *upstream.Environment
	temporary string // the folder of what users need
}

// WebhookServer is the server of the webhooks, once the environment has started with WebhooksInProcess; else nil.
func (e *Environment) WebhookServer() *WebhookServer { return e.state.hooks }

// Start starts the cluster, installs the CRDs and webhooks, and returns an administrator's configuration. The caller stops the
// environment also if Start returns an error.
func (e *Environment) Start() (*rest.Config, error) {
	existing := true
	if e.UseExistingCluster == nil && strings.EqualFold(os.Getenv("USE_EXISTING_CLUSTER"), "true") { // as upstream
		e.UseExistingCluster = &existing
	}
	if e.UseExistingCluster == nil || !*e.UseExistingCluster {
		if err := e.startServer(); err != nil {
			return nil, err
		}
	}
	if e.Scheme == nil {
		e.Scheme = scheme.Scheme
	}
	e.state.installed = &upstream.Environment{
		UseExistingCluster: &existing, Config: e.Config, KubeConfig: e.KubeConfig, Scheme: e.Scheme, CRDs: e.CRDs,
		CRDInstallOptions: e.CRDInstallOptions, WebhookInstallOptions: e.WebhookInstallOptions,
		ErrorIfCRDPathMissing: e.ErrorIfCRDPathMissing, CRDDirectoryPaths: e.CRDDirectoryPaths,
	}
	if e.WebhooksInProcess {
		return e.Config, e.startWebhooks()
	}
	config, err := e.state.installed.Start()
	e.Config, e.KubeConfig, e.CRDs = e.state.installed.Config, e.state.installed.KubeConfig, e.state.installed.CRDs
	e.CRDInstallOptions, e.WebhookInstallOptions = e.state.installed.CRDInstallOptions, e.state.installed.WebhookInstallOptions
	return config, err
}

// startWebhooks installs the CRDs and webhooks for a server in this process.
func (e *Environment) startWebhooks() (err error) {
	if e.Server == nil {
		return errors.New("start environment: an existing cluster does not reach webhooks in this process")
	}
	e.KubeConfig = e.Server.Kubeconfig()
	if e.state.hooks, err = NewWebhookServer(e.Server); err != nil {
		return err
	}
	err = e.state.hooks.installFor(e)
	e.state.installed.Config, e.state.installed.CRDInstallOptions = e.Config, e.CRDInstallOptions
	return err
}

// startServer starts the cluster with the flags of the API server.
func (e *Environment) startServer() error {
	var defaults map[string][]string // of the flags, as envtest's
	if e.Server == nil {
		e.Server = &embed.Server{Controllers: []string{"none"}, ServiceCIDR: "10.0.0.0/24"}
		// Nothing makes service accounts in such a cluster.
		defaults = map[string][]string{"disable-admission-plugins": {"ServiceAccount"}, "allow-privileged": {"true"}}
	}
	if err := e.startUsers(); err != nil {
		return fmt.Errorf("prepare users: %w", err)
	}
	f := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	embed.AddFlags(f, &e.Server.APIServer)
	if err := f.Parse(e.ControlPlane.GetAPIServer().Configure().AsStrings(defaults)); err != nil {
		return fmt.Errorf("read the flags of the API server: %w", err)
	}
	if err := e.Server.Start(context.Background()); err != nil {
		return fmt.Errorf("start cluster: %w", err)
	}
	e.Config = e.Server.Config()
	return e.serve()
}

// Stop removes what was installed, as the options say, and stops the cluster.
func (e *Environment) Stop() error {
	var err error
	if e.state.installed != nil {
		err = e.state.installed.Stop()
	}
	if e.Server != nil {
		err = errors.Join(err, e.Server.Stop(), e.stopUsers())
	}
	return err
}
