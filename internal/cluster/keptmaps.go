// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/authenticate"
	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
	"github.com/mortise-dev/mortise/internal/lifecycle"
)

var configMaps = schema.GroupResource{Resource: "configmaps"}

// leaveFor is how long after a change of the ConfigMap of trusts the server restores it, as upstream's.
const leaveFor = time.Minute

// configMapPublisher writes and restores the config maps that the API server publishes.
type configMapPublisher struct {
	server *apiserver.Server
	self   components
	trusts func() *trusts // the current ones
}

// keepAll lets the API server maintain the config maps. tracked reports whether the one that tracks legacy tokens existed at the
// start. It returns a function that enqueues the trusts: certificates expire.
func (k *configMapPublisher) keepAll(
	ctx context.Context, tracked bool, s *authenticate.Settings, encryption encrypting, group *lifecycle.Group,
) (look func()) {
	look = k.server.Keep(bootstrap.AuthenticationName, leaveFor, k.publishTrusts)
	if s.ClientCAs != nil {
		s.ClientCAs.OnChange(look)
	}
	if s.FrontProxy != nil {
		s.FrontProxy.Authorities.OnChange(look)
	}
	t := &tracking{configMapPublisher: k}
	if !tracked {
		t.made = time.Now()
	}
	lookAtTracking := k.server.Keep(bootstrap.TrackingName, 0, t.keep)
	if encryption.ill(ctx) {
		group.Go(ctx, func(ctx context.Context) {
			if encryption.transformers.Await(ctx, func(schema.GroupResource) bool { return false }) == nil {
				look()
				lookAtTracking()
			}
		})
	}
	return look
}

// tracking maintains the ConfigMap with the day since which the server records the use of legacy tokens.
type tracking struct {
	*configMapPublisher
	made time.Time // when this process last created it
}

// remakeAfter is the minimum time after its creation before a deleted ConfigMap is created again: a server of a version
// that does not record uses would delete it, and both would go on for ever.
const remakeAfter = 30 * time.Minute

// keep creates the ConfigMap if it is missing, and corrects one without a valid day.
func (t *tracking) keep(ctx context.Context) (again time.Duration, err error) {
	now := time.Now()
	_, err = t.server.Backend().Get(ctx, configMaps, metav1.NamespaceSystem, bootstrap.TrackingName)
	missing := apierrors.IsNotFound(err)
	if missing {
		if wait := t.made.Add(remakeAfter).Sub(now); wait > 0 {
			return wait, nil
		}
	}
	err = t.writeMap(ctx, bootstrap.TrackingName, func(has map[string]string) (map[string]string, error) {
		if _, err := time.Parse(time.DateOnly, has[bootstrap.TrackingKey]); err == nil {
			return has, nil
		}
		out := maps.Clone(has)
		if out == nil {
			out = map[string]string{}
		}
		out[bootstrap.TrackingKey] = now.UTC().Format(time.DateOnly)
		return out, nil
	})
	if missing && err == nil {
		t.made = now
	}
	return 0, err
}

// writeMap updates the data of a config map in kube-system with change.
func (k *configMapPublisher) writeMap(
	ctx context.Context, name string, change func(has map[string]string) (map[string]string, error),
) error {
	obj, err := k.server.Backend().Get(ctx, configMaps, metav1.NamespaceSystem, name)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("get config map: %w", err)
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name}}
	if !missing {
		m = obj.(*corev1.ConfigMap).DeepCopy()
	}
	data, err := change(m.Data)
	if err != nil {
		return fmt.Errorf("read config map: %w", err)
	}
	if !missing && maps.Equal(data, m.Data) {
		return nil
	}
	m.Data = data
	c := k.self.ownClient().CoreV1().ConfigMaps(metav1.NamespaceSystem)
	if missing {
		_, err = c.Create(ctx, m, metav1.CreateOptions{})
	} else {
		_, err = c.Update(ctx, m, metav1.UpdateOptions{})
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
		return nil // the conflicting change requeues it
	}
	if err != nil {
		return fmt.Errorf("write config map: %w", err)
	}
	return nil
}
