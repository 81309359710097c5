// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"testing"

	"k8s.io/client-go/util/flowcontrol"

	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
)

func TestPullsAreBounded(t *testing.T) {
	k := kubeletconfig.Default()
	k.RegistryPullQPS, k.RegistryBurst = new(int32(1)), 2
	l := newLimits(k)
	if l.rate.QPS() != 1 {
		t.Errorf("%v pulls a second", l.rate.QPS())
	}
	l.rate = flowcontrol.NewTokenBucketRateLimiter(1e-6, 2) // the machine may be slow
	release, err := l.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if l.parallel.TryAcquire(1) {
		t.Error("two images are pulled at once")
	}
	release()
	if release, err = l.acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	release()
	if _, err = l.acquire(t.Context()); err == nil || err.Error() != "pull QPS exceeded" {
		t.Errorf("the third in a moment: %v", err)
	}
}
