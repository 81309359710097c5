// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"io"
	"net/http"
	"testing"

	"k8s.io/client-go/rest"
)

// TestWatchesEndWithTheServer checks that watches that wait end when their server does.
func TestWatchesEndWithTheServer(t *testing.T) {
	var answers []*http.Response
	t.Run("server", func(t *testing.T) {
		f := start(t)
		client, err := rest.HTTPClientFor(f.tls)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			r, err := http.NewRequest(http.MethodGet, f.tls.Host+"/api/v1/configmaps?watch=true", nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			answers = append(answers, answer)
		}
	})
	for _, answer := range answers {
		if b, err := io.ReadAll(answer.Body); err != nil || len(b) > 0 {
			t.Errorf("the watch ended with %q, %v", b, err)
		}
		_ = answer.Body.Close()
	}
}
