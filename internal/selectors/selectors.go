// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package selectors parses the label and field selectors of requests. It refuses selectors with more than [MaxTerms] terms before
// it parses them, because the parsers take hundreds of bytes for each term: a selector of a megabyte would cost a quarter of a
// gigabyte. Requests with the same long selector share one parsed selector for as long as one of them is under way.
//
// All functions are safe for concurrent use. Parsed selectors are immutable.
package selectors

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"weak"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// MaxTerms is the maximum number of terms of a selector, including the values of sets.
const MaxTerms = 4096

// minShared is the length of text from which on selectors are shared: to parse a shorter one again costs less than to find it.
const minShared = 256

// TooLarge is the error for a selector with too many terms.
type TooLarge struct {
	Kind string // "label" or "field"
}

// Error implements error.
func (e *TooLarge) Error() string {
	return fmt.Sprintf("the %s selector has too many terms: at most %d terms and values are allowed", e.Kind, MaxTerms)
}

// CheckCount refuses n terms and values if these are too many. Kind is "label" or "field".
func CheckCount(kind string, n int) error {
	if n > MaxTerms {
		return &TooLarge{Kind: kind}
	}
	return nil
}

// ParseLabels parses a label selector.
func ParseLabels(text string) (labels.Selector, error) {
	if err := CheckCount("label", strings.Count(text, ",")+1); err != nil {
		return nil, err
	}
	if len(text) < minShared {
		return labels.Parse(text)
	}
	s, err := parsedLabels.get(text, func(text string) (*sharedLabels, error) {
		s, err := labels.Parse(text)
		return &sharedLabels{s}, err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// ParseFields parses a field selector.
func ParseFields(text string) (fields.Selector, error) {
	if len(text) < minShared {
		return fields.ParseSelector(text)
	}
	if err := CheckCount("field", fieldTerms(text)); err != nil {
		return nil, err
	}
	s, err := parsedFields.get(text, func(text string) (*sharedFields, error) {
		s, err := fields.ParseSelector(text)
		return &sharedFields{s}, err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// fieldTerms counts the terms of a field selector: commas part them, those behind a backslash aside.
func fieldTerms(text string) int {
	n := 1
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case ',':
			n++
		}
	}
	return n
}

// Transform has the function change the terms of a field selector. Where it changes none, the selector itself is returned, so that
// a shared one stays shared.
func Transform(s fields.Selector, change fields.TransformFunc) (fields.Selector, error) {
	changed, err := s.Transform(change)
	if err != nil {
		return nil, err
	}
	if slices.Equal(s.Requirements(), changed.Requirements()) {
		return s, nil
	}
	return changed, nil
}

// sharedLabels and sharedFields are what the holders of a shared selector hold: without holders it is dropped.
type sharedLabels struct{ labels.Selector }

type sharedFields struct{ fields.Selector }

var (
	parsedLabels shared[sharedLabels]
	parsedFields shared[sharedFields]
)

// shared finds parsed selectors by their text. It does not keep them alive, so that it needs no bound of its own: each entry
// belongs to a request that is under way, or was before the last garbage collection.
type shared[T any] struct {
	mu     sync.Mutex
	byText map[string]weak.Pointer[T]
}

func (c *shared[T]) get(text string, parse func(string) (*T, error)) (*T, error) {
	if s := c.find(text); s != nil {
		return s, nil
	}
	text = strings.Clone(text) // it was part of a request's head, which may be far larger
	s, err := parse(text)      // not under the lock: others have other selectors
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if first := c.byText[text].Value(); first != nil {
		return first, nil // another goroutine was faster
	}
	if c.byText == nil {
		c.byText = map[string]weak.Pointer[T]{}
	}
	ref := weak.Make(s)
	c.byText[text] = ref
	runtime.AddCleanup(s, func(text string) { c.forget(text, ref) }, text)
	return s, nil
}

func (c *shared[T]) find(text string) *T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byText[text].Value()
}

// forget drops an entry, unless the selector was parsed anew meanwhile.
func (c *shared[T]) forget(text string, ref weak.Pointer[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byText[text] == ref {
		delete(c.byText, text)
	}
}
