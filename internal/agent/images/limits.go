// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"errors"

	"golang.org/x/sync/semaphore"
	"k8s.io/client-go/util/flowcontrol"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// limits limit the number of concurrent pulls, and their rate.
type limits struct {
	parallel *semaphore.Weighted     // nil: no limit
	rate     flowcontrol.RateLimiter // nil: no limit
}

func newLimits(k *configv1beta1.KubeletConfiguration) limits {
	var l limits
	switch {
	case *k.SerializeImagePulls:
		l.parallel = semaphore.NewWeighted(1)
	case k.MaxParallelImagePulls != nil:
		l.parallel = semaphore.NewWeighted(int64(*k.MaxParallelImagePulls))
	}
	if qps := *k.RegistryPullQPS; qps > 0 {
		l.rate = flowcontrol.NewTokenBucketRateLimiter(float32(qps), int(k.RegistryBurst))
	}
	return l
}

// acquire waits until an image may be pulled.
func (l *limits) acquire(ctx context.Context) (release func(), err error) {
	if l.parallel != nil {
		if err := l.parallel.Acquire(ctx, 1); err != nil {
			return nil, err
		}
	}
	release = func() {
		if l.parallel != nil {
			l.parallel.Release(1)
		}
	}
	if l.rate != nil && !l.rate.TryAccept() {
		release()
		return nil, errors.New("pull QPS exceeded") // upstream's words
	}
	return release, nil
}
