// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package selectors

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"weak"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// terms is a text of n parts.
func terms(n int, part string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(part, i)
	}
	return strings.Join(parts, ",")
}

func TestSelectorTermsAreBounded(t *testing.T) {
	parseLabels := func(text string) error { _, err := ParseLabels(text); return err }
	parseFields := func(text string) error { _, err := ParseFields(text); return err }
	for name, c := range map[string]struct {
		parse func(string) error
		text  string
		fits  bool
	}{
		"labels that fit":         {parseLabels, terms(MaxTerms, "k%d"), true},
		"one label too many":      {parseLabels, terms(MaxTerms+1, "k%d"), false},
		"a set that fits":         {parseLabels, "k in (" + terms(MaxTerms, "v%d") + ")", true},
		"a set of one too many":   {parseLabels, "k in (" + terms(MaxTerms+1, "v%d") + ")", false},
		"empty values":            {parseLabels, "k in (" + strings.Repeat(",", MaxTerms) + ")", false},
		"fields that fit":         {parseFields, terms(MaxTerms, "metadata.name=n%d"), true},
		"one field too many":      {parseFields, terms(MaxTerms+1, "metadata.name=n%d"), false},
		"empty fields":            {parseFields, strings.Repeat(",", MaxTerms), false},
		"escaped commas":          {parseFields, `a=` + strings.Repeat(`\,`, 2*MaxTerms), true},
		"commas behind escapes":   {parseFields, `a=\\` + strings.Repeat(`,a=\\`, MaxTerms), false},
		"nothing, of labels":      {parseLabels, "", true},
		"nothing, of fields":      {parseFields, "", true},
		"short labels":            {parseLabels, "a=b,!c", true},
		"short fields, too short": {parseFields, "metadata.name=a,", true},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.parse(c.text)
			if c.fits && err != nil {
				t.Errorf("refused: %.200v", err)
			}
			if tooLarge := (*TooLarge)(nil); !c.fits && !errors.As(err, &tooLarge) {
				t.Errorf("answered %.200v", err)
			}
		})
	}
}

// TestRefusalsCostNothing wants selectors that are refused not to be parsed first.
func TestRefusalsCostNothing(t *testing.T) {
	text := terms(160_000, "k%d")
	if n := testing.AllocsPerRun(10, func() {
		if _, err := ParseLabels(text); err == nil {
			t.Error("160,000 terms are allowed")
		}
		if _, err := ParseFields(text); err == nil {
			t.Error("160,000 terms are allowed")
		}
	}); n > 10 {
		t.Errorf("%v allocations to refuse selectors", n)
	}
}

func TestSelectorsAreShared(t *testing.T) {
	text, fieldText := terms(100, "label%d"), terms(100, "metadata.name!=n%d")
	first, err := ParseLabels(text)
	if err != nil {
		t.Fatal(err)
	}
	firstFields, err := ParseFields(fieldText)
	if err != nil {
		t.Fatal(err)
	}
	var g sync.WaitGroup
	for range 8 {
		g.Go(func() {
			if s, err := ParseLabels(strings.Clone(text)); err != nil || s != first {
				t.Errorf("a second label selector of the same text is parsed anew, error %v", err)
			}
			s, err := ParseFields(strings.Clone(fieldText))
			if err != nil || s != firstFields {
				t.Errorf("a second field selector of the same text is parsed anew, error %v", err)
				return
			}
			same, err := Transform(s, func(k, v string) (string, string, error) { return k, v, nil })
			if err != nil || same != firstFields {
				t.Errorf("a selector that no version changes is copied, error %v", err)
			}
			other, err := Transform(s, func(_, v string) (string, string, error) { return "x", v, nil })
			if err != nil || other == firstFields || !strings.HasPrefix(other.String(), "x!=n0") {
				t.Errorf("a changed selector is %.50v, error %v", other, err)
			}
		})
	}
	g.Wait()
	want, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if first.String() != want.String() || first.Empty() || firstFields.String() != fields.ParseSelectorOrDie(fieldText).String() {
		t.Error("a shared selector is not what was parsed")
	}
	runtime.KeepAlive(first)
}

// TestSelectorsAreForgotten wants nothing to stay of selectors that nobody holds.
func TestSelectorsAreForgotten(t *testing.T) {
	var c shared[sharedLabels]
	parse := func(text string) (*sharedLabels, error) {
		s, err := labels.Parse(text)
		return &sharedLabels{s}, err
	}
	gone := make(chan struct{})
	held, err := c.get("held", parse)
	if err != nil {
		t.Fatal(err)
	}
	func() {
		s, err := c.get("dropped", parse)
		if err != nil {
			t.Fatal(err)
		}
		ref := weak.Make(s)
		runtime.AddCleanup(s, func(gone chan struct{}) {
			c.forget("dropped", ref) // the cache's own cleanup may come after this one
			close(gone)
		}, gone)
	}()
	runtime.GC()
	<-gone
	c.mu.Lock()
	n := len(c.byText)
	c.mu.Unlock()
	if n != 1 {
		t.Errorf("%d selectors are remembered, want the one that is held", n)
	}
	again, err := c.get("dropped", parse)
	if err != nil {
		t.Fatal(err)
	}
	c.forget("dropped", weak.Make(held)) // the cleanup of one that was there before
	if s, err := c.get("dropped", parse); err != nil || s != again {
		t.Errorf("a selector that was parsed anew is forgotten with the one before, error %v", err)
	}
	runtime.KeepAlive(again)
	runtime.KeepAlive(held)
}

func TestWrongSelectorsAreRefused(t *testing.T) {
	long := terms(100, "label%d")
	for _, text := range []string{"a in", long + ",a in"} {
		_, want := labels.Parse(text)
		if _, err := ParseLabels(text); err == nil || err.Error() != want.Error() {
			t.Errorf("%.20s is answered %v, want %v", text, err, want)
		}
	}
	for _, text := range []string{"a", long} {
		_, want := fields.ParseSelector(text)
		if _, err := ParseFields(text); err == nil || err.Error() != want.Error() {
			t.Errorf("%.20s is answered %v, want %v", text, err, want)
		}
	}
}
