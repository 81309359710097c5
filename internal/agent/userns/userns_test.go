// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package userns

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func table(t *testing.T, first, count, each uint32) *Table {
	t.Helper()
	out, err := New(first, count, each, 0)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestBoundsAreChecked(t *testing.T) {
	for want, c := range map[string]struct {
		first, count, each uint32
		pods               int64
	}{
		"": {Unit, 110 * Unit, Unit, 110},
		"kubelet user namespace length 1000 is not a multiple of 65536":          {Unit, Unit, 1000, 1},
		"kubelet user namespace length 0 is not a multiple of 65536":             {Unit, Unit, 0, 1},
		"kubelet user assigned ID 65537 is not a multiple of 65536":              {Unit + 1, Unit, Unit, 1},
		"kubelet user assigned ID 0 must be greater or equal to 65536":           {0, Unit, Unit, 1},
		"kubelet user assigned IDs length 65537 is not a multiple of 65536":      {Unit, Unit + 1, Unit, 1},
		"kubelet user assigned IDs are not enough to support 111 pods":           {Unit, 110 * Unit, Unit, 111},
		"kubelet user assigned ID 65536 is not a multiple of 131072":             {Unit, 4 * Unit, 2 * Unit, 1},
		"kubelet user assigned IDs length 196608 is not a multiple of 131072":    {2 * Unit, 3 * Unit, 2 * Unit, 1},
		"kubelet user assigned IDs are not enough to support 2 pods":             {2 * Unit, 2 * Unit, 2 * Unit, 2},
		"kubelet user assigned ID 65536 is not a multiple of 4294901760":         {Unit, Unit, 65535 * Unit, 1},
		"kubelet user assigned IDs length 65536 is not a multiple of 4294901760": {65535 * Unit, Unit, 65535 * Unit, 1},
		"kubelet user assigned IDs are not enough to support 4294967296 pods":    {Unit, 110 * Unit, Unit, 1 << 32},
		"kubelet user assigned ID 0 must be greater or equal to 131072":          {0, Unit, 2 * Unit, 1},
	} {
		_, err := New(c.first, c.count, c.each, c.pods)
		if got := fmt.Sprint(err); err == nil && want != "" || err != nil && got != want {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
	}
	for _, each := range []uint32{Unit, 2 * Unit, 3 * Unit} {
		first, count := All(each)
		all := table(t, first, count, each)
		if last := all.at(all.most - 1); uint64(last.First)+uint64(last.Length) > 1<<32 || uint64(last.First)+2*uint64(each) <= 1<<32 {
			t.Errorf("of %d: the last range is %+v", each, last)
		}
	}
}

func TestWrittenAsKubeletWrites(t *testing.T) {
	const want = `{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}`
	r := Range{First: 2 * Unit, Length: Unit}
	if got := string(r.Encode()); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	tab := table(t, Unit, 4*Unit, Unit)
	if got, err := tab.Adopt("a", []byte(want)); err != nil || got != r {
		t.Errorf("adopted %+v, %v", got, err)
	}
	if got, fresh, err := tab.Take("a"); err != nil || fresh || got != r {
		t.Errorf("has %+v, fresh %t, %v", got, fresh, err)
	}
	o := r.Option()
	if o.Mode != runtimeapi.NamespaceMode_POD || len(o.Uids) != 1 || o.Uids[0].HostId != 2*Unit || o.Uids[0].Length != Unit ||
		o.Gids[0].HostId != 2*Unit {
		t.Errorf("told %v", o)
	}
}

func TestWhatIsNotAdopted(t *testing.T) {
	one := func(uid, gid string) string { return `{"uidMappings":[` + uid + `],"gidMappings":[` + gid + `]}` }
	at := func(host, container, length int) string {
		return fmt.Sprintf(`{"hostId":%d,"containerId":%d,"length":%d}`, host, container, length)
	}
	both := func(host, length int) string { return one(at(host, 0, length), at(host, 0, length)) }
	for text, want := range map[string]string{
		`{`:         "invalid user namespace mappings file: unexpected end of JSON input",
		one("", ""): "invalid user namespace configuration: no more than one mapping allowed.",
		one(at(Unit, 0, Unit)+","+at(0, 0, 1), at(Unit, 0, Unit)): "invalid user namespace configuration: no more than one mapping allowed.",
		one(at(Unit, 0, Unit), ""):                                "invalid user namespace configuration: GID and UID mappings should be identical.",
		one(at(Unit, 0, Unit), at(2*Unit, 0,
			Unit)): "invalid user namespace configuration: GID and UID mapping should be identical",
		one(at(Unit, 1, Unit), at(Unit, 1, Unit)): "invalid user namespace configuration: UID 0 must be mapped",
		both(Unit, 5):       "wrong user namespace length 5",
		both(Unit+1, Unit):  "wrong user namespace offset specified 65537",
		both(0, Unit):       "id 0 is out of range",
		both(5*Unit, Unit):  "id 327680 is out of range",
		both(3*Unit, Unit):  `range picked for pod "new" already taken`,
		both(-1, Unit):      "",
		both(1<<32, Unit):   "",
		both(Unit, 1<<32+1): "",
	} {
		tab := table(t, Unit, 4*Unit, Unit)
		if _, err := tab.Adopt("old", Range{3 * Unit, Unit}.Encode()); err != nil {
			t.Fatal(err)
		}
		if _, err := tab.Adopt("new", []byte(text)); err == nil || want != "" && err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
		if _, ok := tab.of["new"]; ok {
			t.Errorf("%s: the pod has a range", text)
		}
	}
	tab := table(t, Unit, 4*Unit, Unit)
	if _, _, err := tab.Take("p"); err != nil {
		t.Fatal(err)
	}
	if _, err := tab.Adopt("p", []byte(both(2*Unit, Unit))); err == nil ||
		err.Error() != `different user namespace range already used by pod "p"` {
		t.Errorf("another range: %v", err)
	}
}

// TestNoTwoPodsShare takes, adopts and releases at random, against a list of who has what.
func TestNoTwoPodsShare(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		const most = 5
		tab := table(t, 2*Unit, most*Unit, Unit)
		has := map[types.UID]Range{}
		for range 400 {
			pod := types.UID(fmt.Sprint(random.IntN(8)))
			switch random.IntN(3) {
			case 0:
				tab.Release(pod)
				delete(has, pod)
			case 1: // a restart: all is forgotten but what is written down
				tab = table(t, 2*Unit, most*Unit, Unit)
				for p, r := range has {
					if _, err := tab.Adopt(p, r.Encode()); err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
				}
			case 2:
				r, fresh, err := tab.Take(pod)
				old, had := has[pod]
				switch {
				case err != nil && (had || len(has) < most):
					t.Fatalf("seed %d: %v", seed, err)
				case err != nil:
					continue
				case fresh == had || had && old != r || r.First < 2*Unit || r.First+r.Length > (2+most)*Unit:
					t.Fatalf("seed %d: %+v, fresh %t, had %+v", seed, r, fresh, old)
				}
				for p, other := range has {
					if p != pod && other == r {
						t.Fatalf("seed %d: %s and %s share %+v", seed, p, pod, r)
					}
				}
				has[pod] = r
			}
		}
	}
}

func TestSupported(t *testing.T) {
	can := []*runtimeapi.RuntimeHandler{
		{Name: "", Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}}, {Name: "old"},
		{Name: "crun", Features: &runtimeapi.RuntimeHandlerFeatures{}},
	}
	for name, c := range map[string]struct {
		handlers []*runtimeapi.RuntimeHandler
		handler  string
		want     string
	}{
		"can":     {can, "", ""},
		"silent":  {nil, "", "can't set `spec.hostUsers: false`, runtime does not support user namespaces"},
		"handler": {can, "crun", "can't set `spec.hostUsers: false`, RuntimeClass handler \"crun\" does not support user namespaces"},
		"old":     {can, "old", "can't set `spec.hostUsers: false`, RuntimeClass handler \"old\" does not support user namespaces"},
		"unknown": {can, "x", "can't set `spec.hostUsers: false`, RuntimeClass handler \"x\" does not support user namespaces: the handler \"x\" is not known"},
	} {
		got := ""
		if err := Supported(c.handlers, c.handler); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestSubordinate(t *testing.T) {
	first, count, err := Subordinate("0: kubelet 65536 7208960\n")
	if err != nil || first != 65536 || count != 7208960 {
		t.Errorf("%d, %d, %v", first, count, err)
	}
	for _, text := range []string{"", "0: kubelet 65536\n", "0: kubelet 65536 -1", "0: kubelet 65536 4294967296",
		"0: kubelet 65536 1\n1: kubelet 1 1\n", "x"} {
		if _, _, err := Subordinate(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

func FuzzAdopt(f *testing.F) {
	f.Add(string(Range{Unit, Unit}.Encode()))
	f.Fuzz(func(t *testing.T, text string) {
		tab := table(t, Unit, 4*Unit, Unit)
		r, err := tab.Adopt("p", []byte(text))
		if err == nil && (r.Length != Unit || r.First < Unit || r.First > 4*Unit) {
			t.Errorf("adopted %+v", r)
		}
	})
}
