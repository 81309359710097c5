// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package ondemand

import (
	"errors"
	"runtime"
	"sync"
	"testing"
)

// counted makes values that count their computations.
func counted(p *Pool, cost int64) (*Value[*int], *int) {
	made := 0
	return New(p, cost, func() (*int, error) { made++; n := made; return &n, nil }), &made
}

func get(t *testing.T, v *Value[*int]) int {
	t.Helper()
	n, err := v.Get()
	if err != nil {
		t.Fatal(err)
	}
	return *n
}

func TestMadeOnceWhileThereIsRoom(t *testing.T) {
	p := NewPool(100)
	a, made := counted(p, 40)
	b, _ := counted(p, 60)
	for range 3 {
		get(t, a)
		get(t, b)
	}
	if *made != 1 || p.Used() != 100 {
		t.Errorf("made %d times, pool at %d; want once and 100", *made, p.Used())
	}
}

func TestWhatWasNotAskedForLatelyGoesFirst(t *testing.T) {
	p := NewPool(3)
	var values [5]*Value[*int]
	var made [5]*int
	for i := range values {
		values[i], made[i] = counted(p, 1)
	}
	for _, i := range []int{0, 1, 2, 3, 1, 4, 1, 3} { // as in the package's worked example: 3 displaces 0, 4 displaces 2
		get(t, values[i])
	}
	for i, want := range [5]int{1, 1, 1, 1, 1} {
		if *made[i] != want {
			t.Errorf("value %d was made %d times, want %d", i, *made[i], want)
		}
	}
	if p.Used() != 3 {
		t.Errorf("pool at %d, want 3", p.Used())
	}
	if get(t, values[0]) != 2 || get(t, values[2]) != 2 {
		t.Error("a value that was dropped was not made again")
	}
}

func TestLargerThanThePool(t *testing.T) {
	p := NewPool(10)
	a, _ := counted(p, 4)
	get(t, a)
	big, made := counted(p, 50)
	get(t, big)
	get(t, big)
	if *made != 1 {
		t.Errorf("a value larger than its pool was made %d times by one who asked twice", *made)
	}
	get(t, a)
	if p.Used() > 54 {
		t.Errorf("pool at %d", p.Used())
	}
}

func TestErrorsAreNotKept(t *testing.T) {
	broken := true
	v := New(NewPool(10), 1, func() (int, error) {
		if broken {
			return 0, errors.New("not yet")
		}
		return 7, nil
	})
	if _, err := v.Get(); err == nil {
		t.Fatal("no error")
	}
	broken = false
	if n, err := v.Get(); n != 7 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
}

func TestNobodysValuesGoFirst(t *testing.T) {
	p := NewPool(2)
	func() {
		gone, _ := counted(p, 1)
		get(t, gone)
	}()
	runtime.GC()
	a, made := counted(p, 1)
	b, _ := counted(p, 1)
	get(t, a)
	get(t, b)
	get(t, a)
	if *made != 1 || p.Used() != 2 {
		t.Errorf("made %d times, pool at %d; want once and 2", *made, p.Used())
	}
}

func TestManyAsk(t *testing.T) {
	p := NewPool(4)
	values := make([]*Value[int], 16)
	for i := range values {
		values[i] = New(p, 1, func() (int, error) { return i, nil })
	}
	var g sync.WaitGroup
	for w := range 8 {
		g.Go(func() {
			for i := range 2000 {
				at := (i*7 + w) % len(values)
				if n, err := values[at].Get(); n != at || err != nil {
					t.Errorf("value %d is %d, %v", at, n, err)
					return
				}
			}
		})
	}
	g.Wait()
	if p.Used() > 5 {
		t.Errorf("pool at %d, want at most 4 and the last", p.Used())
	}
}

func BenchmarkGet(b *testing.B) {
	v := New(NewPool(10), 1, func() (int, error) { return 1, nil })
	for b.Loop() {
		if _, err := v.Get(); err != nil {
			b.Fatal(err)
		}
	}
}
