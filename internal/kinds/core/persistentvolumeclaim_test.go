// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// The older and the newer field for a claim's source agree. What the older one never allowed is dropped unless it is there already, and so
// is a source in another namespace, while CrossNamespaceVolumeDataSource is off.
func TestDataSources(t *testing.T) {
	group := "snapshot.storage.k8s.io"
	local := func(group *string, kind string) *corev1.TypedLocalObjectReference {
		return &corev1.TypedLocalObjectReference{APIGroup: group, Kind: kind, Name: "n"}
	}
	ref := func(group *string, kind string) *corev1.TypedObjectReference {
		return &corev1.TypedObjectReference{APIGroup: group, Kind: kind, Name: "n"}
	}
	other := ref(&group, "VolumeSnapshot")
	other.Namespace = new("other")
	type spec = corev1.PersistentVolumeClaimSpec
	for name, c := range map[string]struct{ asked, old, want spec }{
		"none": {},
		"a claim, older": {
			asked: spec{DataSource: local(nil, "PersistentVolumeClaim")},
			want:  spec{DataSource: local(nil, "PersistentVolumeClaim"), DataSourceRef: ref(nil, "PersistentVolumeClaim")},
		},
		"a snapshot, newer": {
			asked: spec{DataSourceRef: ref(&group, "VolumeSnapshot")},
			want:  spec{DataSource: local(&group, "VolumeSnapshot"), DataSourceRef: ref(&group, "VolumeSnapshot")},
		},
		"a populator, older": {asked: spec{DataSource: local(&group, "Other")}},
		"a populator, newer": {
			asked: spec{DataSourceRef: ref(&group, "Other")},
			want:  spec{DataSource: local(&group, "Other"), DataSourceRef: ref(&group, "Other")},
		},
		"a populator that is there": {
			asked: spec{DataSource: local(&group, "Other")}, old: spec{DataSource: local(&group, "Other")},
			want: spec{DataSource: local(&group, "Other"), DataSourceRef: ref(&group, "Other")},
		},
		"another namespace":        {asked: spec{DataSourceRef: other}},
		"another namespace, there": {asked: spec{DataSourceRef: other}, old: spec{DataSourceRef: other}, want: spec{DataSourceRef: other}},
	} {
		got := c.asked.DeepCopy()
		dataSources(got, &c.old)
		if diff := cmp.Diff(c.want, *got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
