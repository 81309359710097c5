// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticator_test

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/extension/authenticator"
)

// byKey authenticates requests with an API key. A request without a key has another credential, or none: that is no error.
func byKey(r *http.Request) (*authenticator.Response, bool, error) {
	key := r.Header.Get("X-Api-Key")
	switch {
	case key == "":
		return nil, false, nil
	case subtle.ConstantTimeCompare([]byte(key), []byte("open sesame")) != 1:
		return nil, false, errors.New("the API key is not valid")
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: "ali", Groups: []string{user.AllAuthenticated}}}, true, nil
}

// An authenticator finds the user of a request by a credential of its kind. ExampleExtensions_authenticators of package embed runs one in a
// cluster.
func Example() {
	var a authenticator.Authenticator = authenticator.Func(byKey)
	for _, key := range []string{"open sesame", "", "open barley"} {
		r := httptest.NewRequest(http.MethodGet, "/api/v1/pods", http.NoBody)
		r.Header.Set("X-Api-Key", key)
		who, ok, err := a.AuthenticateRequest(r)
		if ok {
			fmt.Println(who.User.GetName())
			continue
		}
		fmt.Println("nobody:", err)
	}
	// Output:
	// ali
	// nobody: <nil>
	// nobody: the API key is not valid
}
