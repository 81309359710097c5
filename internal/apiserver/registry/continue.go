// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// continueToken is the position at which a list continues, in kube-apiserver's format.
type continueToken struct {
	APIVersion      string `json:"v"`
	ResourceVersion int64  `json:"rv"`
	StartKey        string `json:"start"`
}

// encodeContinue makes the token to continue at a key, which it holds without the kind's prefix.
func encodeContinue(start string, rv int64) string {
	b, err := json.Marshal(continueToken{APIVersion: "meta.k8s.io/v1", ResourceVersion: rv, StartKey: start})
	if err != nil {
		panic(fmt.Sprintf("encode continue token: %v", err)) // strings and numbers are always JSON
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// decodeContinue returns the key after which the list continues, and its revision; -1 is the newest. A token holds the first key that may
// follow: nearly always the last key of the page and a zero byte.
func decodeContinue(token, prefix string) (after string, rv int64, err error) {
	bad := func(format string, args ...any) error {
		return apierrors.NewBadRequest("invalid continue token: continue key is not valid: " + fmt.Sprintf(format, args...))
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", 0, bad("%v", err)
	}
	var c continueToken
	if err := json.Unmarshal(b, &c); err != nil {
		return "", 0, bad("%v", strings.ReplaceAll(err.Error(), "registry.continueToken", "storage.continueToken"))
	}
	switch {
	case c.APIVersion != "meta.k8s.io/v1":
		return "", 0, bad("server does not recognize this encoded version %s", c.APIVersion)
	case c.ResourceVersion == 0:
		return "", 0, bad("incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
	case c.StartKey == "":
		return "", 0, bad("encoded start key empty (version meta.k8s.io/v1)")
	}
	key := c.StartKey
	if key[0] != '/' {
		key = "/" + key
	}
	if path.Clean(key) != key {
		return "", 0, bad("%s", c.StartKey)
	}
	key = prefix + key[1:]
	if before, ok := strings.CutSuffix(key, "\x00"); ok {
		return before, c.ResourceVersion, nil
	}
	if key == prefix {
		return "", c.ResourceVersion, nil
	}
	// the key itself may come: no name lies between it and this one
	last := len(key) - 1
	return key[:last] + string([]byte{key[last] - 1, 0xff}), c.ResourceVersion, nil
}
