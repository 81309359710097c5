// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension/admission"
	"github.com/mortise-dev/mortise/resource"
)

// Team is an admission plug-in of a third party: config maps belong to a team.
type Team struct {
	Default string `json:"default"`
}

// Name is what --disable-admission-plugins and an AdmissionConfiguration call it.
func (*Team) Name() string { return "Team" }

// Configure reads what the AdmissionConfiguration says for it.
func (t *Team) Configure(config io.Reader) error {
	if config == nil {
		return nil
	}
	data, err := io.ReadAll(config)
	if err != nil {
		return err
	}
	return yaml.UnmarshalStrict(data, t)
}

// Mutate gives the default team to those that name none.
func (t *Team) Mutate(_ context.Context, _ resource.Backend, a *admission.Attributes) error {
	m, ok := a.Object.(*corev1.ConfigMap)
	if !ok || m.Labels["team"] != "" || t.Default == "" || m.Labels["team-less"] != "" {
		return nil
	}
	metav1.SetMetaDataLabel(&m.ObjectMeta, "team", t.Default)
	return nil
}

// Validate refuses those that have none, in namespaces of users.
func (*Team) Validate(_ context.Context, _ resource.Backend, a *admission.Attributes) error {
	if m, ok := a.Object.(*corev1.ConfigMap); ok && a.Namespace == metav1.NamespaceDefault && m.Labels["team"] == "" {
		return apierrors.NewForbidden(a.Descriptor.GroupResource(), a.Name, errors.New("it belongs to no team"))
	}
	return nil
}

// A plug-in is added by one line, and configured by the same file as the built-in ones.
func ExampleExtensions_admission() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	config := filepath.Join(dir, "admission.yaml")
	err = os.WriteFile(config, []byte(`
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: Team
  configuration: {default: platform}
`), 0o600)
	if err != nil {
		panic(err)
	}

	s := &embed.Server{
		Node: embed.NodeNone, Controllers: []string{"none"},
		APIServer:  options.APIServer{Admission: options.Admission{ConfigFile: config}},
		Extensions: embed.Extensions{Admission: []admission.Plugin{&Team{}}}, // the one line
	}
	if err := s.Start(ctx); err != nil {
		panic(err)
	}
	defer s.Stop()

	maps := s.Client().CoreV1().ConfigMaps(metav1.NamespaceDefault)
	made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	fmt.Println(made.Labels, err)
	_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{"team-less": "yes"}}},
		metav1.CreateOptions{})
	fmt.Println(err)
	// Output:
	// map[team:platform] <nil>
	// configmaps "b" is forbidden: it belongs to no team
}
