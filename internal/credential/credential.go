// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package credential gets tokens for kubectl and other clients, as an exec credential plug-in: from a service account ([ServiceAccount]),
// from a file that another program updates ([File]), or from an OpenID Connect issuer by a refresh token ([OIDC]).
//
// [Answer] writes a token in the version that the client requests in KUBERNETES_EXEC_INFO. A [Cache] on disk keeps tokens between
// processes, so that a loop of commands requests a new token only when the last one nears its end.
package credential

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientauthenticationv1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
)

// Token is a bearer token. A zero Expires is unknown.
type Token struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// Source gets tokens.
type Source interface {
	// Get requests a new token.
	Get(ctx context.Context) (Token, error)
	// Name identifies the token by all inputs; empty: it must not be cached.
	Name() string
}

// ExecInfo is the environment variable with the client's request.
const ExecInfo = "KUBERNETES_EXEC_INFO"

// Answer writes the token in the version that info, the value of [ExecInfo], requests; v1 if info is empty.
func Answer(w io.Writer, info string, t Token) error {
	version, err := version(info)
	if err != nil {
		return err
	}
	var until *metav1.Time
	if !t.Expires.IsZero() {
		until = &metav1.Time{Time: t.Expires}
	}
	var out any
	switch version {
	case clientauthenticationv1beta1.SchemeGroupVersion.String():
		out = &clientauthenticationv1beta1.ExecCredential{
			TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: "ExecCredential"},
			Status:   &clientauthenticationv1beta1.ExecCredentialStatus{Token: t.Token, ExpirationTimestamp: until},
		}
	default:
		out = &clientauthenticationv1.ExecCredential{
			TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: "ExecCredential"},
			Status:   &clientauthenticationv1.ExecCredentialStatus{Token: t.Token, ExpirationTimestamp: until},
		}
	}
	if err := json.NewEncoder(w).Encode(out); err != nil {
		return fmt.Errorf("write credential: %w", err)
	}
	return nil
}

// version returns the version that the client requests.
func version(info string) (string, error) {
	v1 := clientauthenticationv1.SchemeGroupVersion.String()
	if info == "" {
		return v1, nil
	}
	var asked metav1.TypeMeta
	if err := json.Unmarshal([]byte(info), &asked); err != nil {
		return "", fmt.Errorf("read %s: %w", ExecInfo, err)
	}
	switch {
	case asked.Kind != "ExecCredential":
		return "", fmt.Errorf("read %s: kind %q: want ExecCredential", ExecInfo, asked.Kind)
	case asked.APIVersion == v1 || asked.APIVersion == clientauthenticationv1beta1.SchemeGroupVersion.String():
		return asked.APIVersion, nil
	}
	return "", fmt.Errorf("read %s: version %q: want %s or %s", ExecInfo, asked.APIVersion, v1, clientauthenticationv1beta1.SchemeGroupVersion)
}

// expiry returns when a JWT expires; zero if the token is no JWT or has no expiry.
func expiry(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}
	}
	var c struct {
		Expires float64 `json:"exp"`
	}
	if json.Unmarshal(b, &c) != nil || c.Expires <= 0 || c.Expires > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(c.Expires), 0)
}

// named returns a source's name, computed from all that it depends on.
func named(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// maxFile limits how much of a file or an answer is read.
const maxFile = 1 << 20

// readToken reads a file that holds one token.
func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return "", err
	}
	t := strings.TrimSpace(string(b))
	if t == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	if strings.ContainsAny(t, " \t\r\n") {
		return "", fmt.Errorf("%s holds more than a token", path)
	}
	return t, nil
}

// File is a token that another program rotates, such as a projected one of a pod.
type File struct{ Path string }

// Get implements [Source].
func (f *File) Get(context.Context) (Token, error) {
	if f.Path == "" {
		return Token{}, errors.New("no token file")
	}
	t, err := readToken(f.Path)
	if err != nil {
		return Token{}, fmt.Errorf("read token: %w", err)
	}
	return Token{t, expiry(t)}, nil
}

// Name implements [Source]: the file is the cache.
func (*File) Name() string { return "" }
