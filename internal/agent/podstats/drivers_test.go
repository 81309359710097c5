// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podstats

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// measuring has volumes of drivers. A driver with a channel answers when the channel is closed.
type measuring map[string]chan struct{}

func (m measuring) Measure(context.Context, *corev1.Pod, *corev1.Volume) (string, volumes.Measure, error) {
	return "", volumes.MeasureDriver, nil
}

func (m measuring) Usage(_ context.Context, pod *corev1.Pod, v *corev1.Volume) (volumes.Usage, error) {
	hangs := m[pod.Name]
	if pod.Name == "fails" {
		return volumes.Usage{}, errors.New("no luck")
	}
	if hangs != nil {
		<-hangs
	}
	return volumes.Usage{Bytes: uint64(len(v.Name))}, nil
}

func podOf(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{{Name: "one"}, {Name: "another"}},
	}}
}

// A driver that hangs delays the figures of other volumes by two seconds at the most, however many volumes it has. Its answer shows later.
func TestDriverHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{})
		p := NewProvider(ProviderConfig{
			Clock: clock.RealClock{}, Volumes: measuring{"hangs": hangs, "hangs-too": hangs}, VolumePeriod: time.Minute,
		})
		pods := []*corev1.Pod{podOf("hangs"), podOf("hangs-too"), podOf("fails"), podOf("works")}
		measure := func() (took time.Duration, volumes map[string]int) {
			begun, volumes := time.Now(), map[string]int{}
			late, cancel := p.ask(t.Context(), pods)
			defer cancel()
			for _, pod := range pods {
				volumes[pod.Name] = len(p.volumeStats(t.Context(), late, pod))
			}
			return time.Since(begun), volumes
		}
		if took, got := measure(); took != driverWait || got["works"] != 2 || got["hangs"]+got["hangs-too"]+got["fails"] != 0 {
			t.Errorf("%v after %v", got, took)
		}
		if took, got := measure(); took != 0 || got["works"] != 2 {
			t.Errorf("cached: %v after %v", got, took)
		}
		time.Sleep(time.Minute)
		if took, got := measure(); took != driverWait || got["works"] != 2 || got["hangs"] != 0 {
			t.Errorf("again: %v after %v", got, took)
		}
		close(hangs)
		synctest.Wait()
		time.Sleep(time.Minute)
		if took, got := measure(); took != 0 || got["works"] != 2 || got["hangs"] != 2 || got["hangs-too"] != 2 {
			t.Errorf("answered: %v after %v", got, took)
		}
		if p.asked.keep(map[types.UID]bool{"works": true}); len(p.asked.all) != 2 {
			t.Errorf("kept: %v", p.asked.all)
		}
	})
}
