// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package learn

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A single failure may be chance. Two in succession, in the same state of the registration, are reported.
func TestTroubleIsToldOfTheSecondTime(t *testing.T) {
	var told []string
	s := &server{learner: New(Options{Told: func(r *Remote, err error) { told = append(told, fmt.Sprint(r.Name, " ", err)) }})}
	for _, c := range []struct {
		state string
		fails bool
		want  []string
	}{
		{"a", true, nil},
		{"a", true, []string{"v1.a no"}},
		{"a", true, []string{"v1.a no"}},
		{"b", true, nil}, // it was away, perhaps
		{"b", false, []string{"v1.a <nil>"}},
		{"b", true, nil},
		{"b", true, []string{"v1.a no"}},
	} {
		told = nil
		troubles := map[string]error{}
		if c.fails {
			troubles["v1.a"] = errors.New("no")
		}
		s.tell(t.Context(), []Remote{{Name: "v1.a", State: c.state}}, troubles)
		if diff := cmp.Diff(c.want, told); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c, diff)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	told = nil
	s.tell(ended, []Remote{{Name: "v1.a", State: "b"}}, map[string]error{"v1.a": context.Canceled})
	if told != nil {
		t.Errorf("a worker that ended says %q", told)
	}
}
