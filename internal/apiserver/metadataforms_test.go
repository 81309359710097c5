// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestMetadataForms compares the rows and items of lists, which are made of kept encodings, with the forms of each object alone.
func TestMetadataForms(t *testing.T) {
	f := start(t)
	client := kubernetes.NewForConfigOrDie(f.tls)
	for i, notes := range []map[string]string{nil, {"a": "<&>\u2028"}, {"b": ""}} {
		m := metav1.ObjectMeta{
			Name: fmt.Sprintf("o%d", i), Annotations: notes, Labels: map[string]string{"l": "1"}, Finalizers: []string{"example.com/f"},
		}
		if _, err := client.CoreV1().ConfigMaps("forms").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: m},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	plain, err := rest.HTTPClientFor(f.tls)
	if err != nil {
		t.Fatal(err)
	}
	get := func(path, accept string) (v map[string]any) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.tls.Host+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", accept)
		res, err := plain.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if err := json.NewDecoder(res.Body).Decode(&v); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d, error %v", path, res.StatusCode, err)
		}
		return v
	}
	list := func(v map[string]any, field string) []any {
		items, _ := v[field].([]any)
		return items
	}
	const root = "/api/v1/namespaces/forms/configmaps"
	for _, include := range []string{"", "?includeObject=Metadata", "?includeObject=None", "?includeObject=Object"} {
		for _, version := range []string{"v1", "v1beta1"} {
			const as = "application/json;as=%s;g=meta.k8s.io;v=%s"
			rows := list(get(root+include, fmt.Sprintf(as, "Table", version)), "rows")
			items := list(get(root, fmt.Sprintf(as, "PartialObjectMetadataList", version)), "items")
			if len(rows) != 3 || len(items) != 3 {
				t.Fatalf("%s%s: %d rows, %d items", root, include, len(rows), len(items))
			}
			for i := range rows {
				one := fmt.Sprintf("%s/o%d", root, i)
				if want := list(get(one+include, fmt.Sprintf(as, "Table", version)), "rows")[0]; !reflect.DeepEqual(rows[i], want) {
					t.Errorf("%s%s: row %v, want %v", one, include, rows[i], want)
				}
				if want := any(get(one, fmt.Sprintf(as, "PartialObjectMetadata", version))); !reflect.DeepEqual(items[i], want) {
					t.Errorf("%s: item %v, want %v", one, items[i], want)
				}
			}
		}
	}
}
