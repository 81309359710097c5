// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package serverjoin makes a machine one more API server of a cluster: it fetches from a server what all servers have in common, the
// authorities of clients and of the front proxy, the key of service accounts, and the EncryptionConfiguration.
//
//	token.go   the token, which has the CA's hash
//	bundle.go  the files
//	join.go    the request
//
// A server gets the token only if the CA with the token's hash has verified it. The user of such a token is in the group [Group], which
// `mortise token create --role server` lets get the path [serving.SharedPath]. The token's holder can be any user of the cluster until the
// token expires.
package serverjoin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
)

// roleName is the name of the ClusterRole and of its binding.
const roleName = "mortise:join-server"

// patience is the maximum time of the request.
const patience = 30 * time.Second

// Prepare lets the users of tokens get the path, if they may not yet.
func Prepare(ctx context.Context, client kubernetes.Interface) error {
	meta := metav1.ObjectMeta{Name: roleName}
	_, err := client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta,
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{serving.SharedPath}}}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make role %s: %w", roleName, err)
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: roleName},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: Group}}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("bind role %s: %w", roleName, err)
	}
	return nil
}

// Options select the cluster and where its keys go.
type Options struct {
	Server string // https://HOST:PORT
	Token  string // see [Parse]
	PKI    string // the directory of keys, which must not exist yet, or has those of the cluster
	// Discover determines the CA of the server's cluster (PEM), which has the token's hash.
	Discover func(context.Context, Token) ([]byte, error)
}

// Join fetches the bundle and writes it, unless the directory has keys of the cluster already.
func Join(ctx context.Context, o Options) error {
	token, err := Parse(o.Token)
	if err != nil {
		return err
	}
	switch has, err := os.ReadFile(filepath.Join(o.PKI, caCert)); {
	case err == nil:
		if err := pinned(has, token.Hash); err != nil {
			return fmt.Errorf("%s has keys of another cluster: %w", o.PKI, err)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	authorities, err := o.Discover(ctx, token)
	if err != nil {
		return err
	}
	b, err := fetch(ctx, o.Server, token, authorities)
	if err == nil {
		err = b.check(token.Hash)
	}
	if err != nil {
		return fmt.Errorf("join %s: %w", o.Server, err)
	}
	return b.write(o.PKI)
}

// fetch asks the server, which the authorities verify before it gets the token.
func fetch(ctx context.Context, server string, token Token, authorities []byte) (b Bundle, err error) {
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: server, Timeout: patience, BearerToken: token.Token.String(), TLSClientConfig: rest.TLSClientConfig{CAData: authorities},
	})
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	text, err := client.RESTClient().Get().AbsPath(serving.SharedPath).DoRaw(ctx)
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("the token is not one for servers: `mortise token create --role server` creates one (%w)", err)
	case apierrors.IsNotFound(err):
		return nil, errors.New("the server's store is its own: servers can join only one with --store etcd")
	case err != nil:
		return nil, err
	}
	return b, json.Unmarshal(text, &b)
}

// Encryption returns the EncryptionConfiguration that came with the keys; empty: none did.
func Encryption(pki string) string {
	path := filepath.Join(pki, serving.SharedEncryption)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}
