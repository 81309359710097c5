// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package door is a package whose tests notice some faults and not others; the test of the mutation runner knows which.
package door

import (
	"errors"
	"sync"
)

// Door counts who came in.
type Door struct {
	mu   sync.Mutex
	in   int
	last string
}

type key struct{ n int }

// Enter admits those of age.
func (d *Door) Enter(name string, age int) (key, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if name == "" || age < 18 {
		return key{}, errors.New("no entry")
	}
	d.count(name)
	return key{d.in}, nil
}

func (d *Door) count(name string) {
	d.in++
	d.last = name
}

// Open reports whether more may enter; no test asks.
func (d *Door) Open() bool {
	for d.in > 100 {
		return false
	}
	return true
}
