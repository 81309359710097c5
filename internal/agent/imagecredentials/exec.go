// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package imagecredentials

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubejson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	configv1 "k8s.io/kubelet/config/v1"
	"k8s.io/kubelet/pkg/apis/credentialprovider"
	"k8s.io/kubelet/pkg/apis/credentialprovider/install"

	"github.com/mortise-dev/mortise/internal/agent/program"
)

// request is what a provider is asked.
type request struct {
	image       string // a repository: no tag, no digest
	token       string // of the pod's service account; empty: none
	annotations map[string]string
}

// caller runs the program of one provider.
type caller struct {
	config  configv1.CredentialProvider
	path    string
	encoder runtime.Encoder
	decoder runtime.Decoder
}

// newCaller finds the program.
func newCaller(dir string, config configv1.CredentialProvider) (*caller, error) {
	path, err := exec.LookPath(filepath.Join(dir, config.Name))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("plugin binary executable %s did not exist", filepath.Join(dir, config.Name)) // upstream's words
	}
	if err != nil {
		return nil, fmt.Errorf("error inspecting binary executable %s: %w", filepath.Join(dir, config.Name), err) // upstream's words
	}
	version, err := schema.ParseGroupVersion(config.APIVersion)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		return nil, errors.New("no serializer for JSON")
	}
	return &caller{
		config: config, path: path, encoder: codecs.EncoderForVersion(info.Serializer, version), decoder: codecs.UniversalDecoder(),
	}, nil
}

// failure is the error of a provider's program.
type failure struct {
	err    error
	stderr string // redacted
}

// Error returns what failed, with the exit code in Go's words, and the beginning of the redacted standard error.
func (f *failure) Error() string {
	if f.stderr == "" {
		return f.err.Error()
	}
	return fmt.Sprintf("%v: %s", f.err, f.stderr)
}

// Unwrap returns the [*exec.ExitError], or the context's error.
func (f *failure) Unwrap() error { return f.err }

// call asks the provider. The answer's text is in no error: it may contain credentials.
func (c *caller) call(ctx context.Context, r request) (*credentialprovider.CredentialProviderResponse, error) {
	text, err := runtime.Encode(c.encoder, &credentialprovider.CredentialProviderRequest{
		Image: r.image, ServiceAccountToken: r.token, ServiceAccountAnnotations: r.annotations,
	})
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	env := os.Environ()
	secrets := []string{r.token}
	for _, e := range c.config.Env {
		env = append(env, e.Name+"="+e.Value)
		if secretName.MatchString(e.Name) {
			secrets = append(secrets, e.Value)
		}
	}
	// As kubelet's, the program has a minute, and the node's environment.
	answer, err := program.Command{Name: c.path, Args: c.config.Args, Env: env, Input: string(text)}.Run(ctx)
	if failed := (*program.Failure)(nil); errors.As(err, &failed) {
		return nil, &failure{err: failed.Err, stderr: redact(string(failed.Errors), secrets...)}
	}
	if err != nil {
		return nil, err
	}
	return c.decode(answer)
}

func (c *caller) decode(answer []byte) (*credentialprovider.CredentialProviderResponse, error) {
	kind, err := kubejson.DefaultMetaFactory.Interpret(answer)
	if err != nil {
		return nil, errors.New("error reading GVK from response") // the cause may quote the answer
	}
	if got := kind.GroupVersion().String(); got != c.config.APIVersion {
		return nil, fmt.Errorf("apiVersion from credential plugin response did not match expected apiVersion:%s, actual apiVersion:%.100s",
			c.config.APIVersion, got) // upstream's words
	}
	obj, _, err := c.decoder.Decode(answer, nil, nil)
	response, ok := obj.(*credentialprovider.CredentialProviderResponse)
	if err != nil || !ok {
		return nil, errors.New("error decoding credential provider plugin response from stdout") // upstream's words
	}
	return response, nil
}
