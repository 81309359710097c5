// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	protobufencoding "k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

// putsAtOnce is how many keys a transaction writes; etcd allows 128.
const putsAtOnce = 100

// ConfigMaps writes n ConfigMaps into the namespace default below a prefix of the keys, as a server stores them, without one.
func (e *Etcd) ConfigMaps(ctx context.Context, prefix string, n int, value string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(e.URL, ","), Logger: zap.NewNop(), Context: ctx})
	if err != nil {
		return fmt.Errorf("connect to etcd: %w", err)
	}
	defer client.Close()
	encoder := protobufencoding.NewSerializer(scheme.Scheme, scheme.Scheme)
	g, filling := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for from := 0; from < n; from += putsAtOnce {
		g.Go(func() error {
			var puts []clientv3.Op
			for i := from; i < min(from+putsAtOnce, n); i++ {
				var b bytes.Buffer
				c := storedConfigMap(i, value)
				if err := encoder.Encode(c, &b); err != nil {
					return fmt.Errorf("encode object: %w", err)
				}
				puts = append(puts, clientv3.OpPut(prefix+"/configmaps/default/"+c.Name, b.String()))
			}
			if _, err := client.Txn(filling).Then(puts...).Commit(); err != nil {
				return fmt.Errorf("fill etcd: %w", err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	// As servers do that have run for some minutes: what they find when they start are objects at rest, not their history.
	now, err := client.Get(ctx, prefix, clientv3.WithCountOnly())
	if err == nil {
		_, err = client.Compact(ctx, now.Header.Revision)
	}
	if err != nil {
		return fmt.Errorf("compact etcd: %w", err)
	}
	return nil
}

// storedConfigMap is a ConfigMap as a client's create leaves it.
func storedConfigMap(i int, value string) *corev1.ConfigMap {
	now := metav1.Now()
	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("m-%d", i+1), Namespace: metav1.NamespaceDefault, CreationTimestamp: now,
			UID: types.UID(fmt.Sprintf("5d59d675-64c1-4a2e-8f00-%012x", i)),
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "bench", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
				Time: &now, FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:data":{".":{},"f:k":{}}}`)}}},
		},
		Data: map[string]string{"k": value},
	}
}
