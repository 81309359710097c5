// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// line makes users wait for turns in an order, and returns a function that returns the order in which they got them.
// Each keeps its turn until the next call.
func (s *Turns) line(ctx context.Context, users ...string) (came chan string, next chan struct{}) {
	came, next = make(chan string, len(users)), make(chan struct{})
	for _, u := range users {
		go func() {
			if t := s.Take(ctx, u[:1], time.Minute); t != nil {
				came <- u
				<-next
				t.End()
			}
		}()
		synctest.Wait()
	}
	return came, next
}

// TestTurnsAreFair checks that a user's single request comes after one request of each other user, not after all of
// them.
func TestTurnsAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewTurns(1)
		came, next := s.line(t.Context(), "a1", "a2", "a3", "a4", "b1", "c1", "b2")
		var order []string
		for range 7 {
			order = append(order, <-came)
			next <- struct{}{}
			synctest.Wait()
		}
		if want := []string{"a1", "a2", "b1", "c1", "a3", "b2", "a4"}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
		if len(s.holders) != 0 || len(s.users) != 0 || len(s.ring) != 0 {
			t.Errorf("left over: %+v", s)
		}
	})
}

// TestYield checks that a running request yields to another user, and continues before its own user's other requests.
func TestYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewTurns(1)
		first := s.Take(t.Context(), "a", 0)
		came, next := s.line(t.Context(), "a2", "b1")
		yielded := false
		go func() { first.Yield(t.Context()); yielded = true }()
		synctest.Wait()
		if got := <-came; got != "b1" && got != "a2" || got == "a2" && yielded {
			t.Errorf("%s came", got)
		} else if got == "a2" {
			t.Error("its own user's other came before it")
		}
		next <- struct{}{}
		synctest.Wait()
		if !yielded {
			t.Error("it did not go on")
		}
		first.End()
		next <- struct{}{}
		synctest.Wait()
		if len(s.holders) != 0 {
			t.Errorf("left over: %d", len(s.holders))
		}
	})
}

// TestSlowClient checks that a turn that waits for a slow client is taken away, and that the request continues without
// a turn.
func TestSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewTurns(1)
		slow := s.Take(t.Context(), "a", 0)
		slow.Writing()
		began := time.Now()
		quick := s.Take(t.Context(), "b", 0)
		if took := time.Since(began); took < tooLong || took > 3*tooLong {
			t.Errorf("the other waited %v", took)
		}
		slow.Yield(t.Context()) // its client read at last; it continues without a turn
		if slow.held || !slow.slow {
			t.Errorf("%+v", slow)
		}
		slow.End()
		quick.End()
		if len(s.holders) != 0 {
			t.Errorf("left over: %d", len(s.holders))
		}
	})
}

// TestTurnsEnd checks that a request that leaves or waits too long leaves nothing behind, and that too many are
// rejected.
func TestTurnsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewTurns(1)
		held := s.Take(t.Context(), "a", 0)
		held.since = held.since.Add(time.Hour) // it is not taken away
		ctx, cancel := context.WithCancel(t.Context())
		refused := make(chan bool)
		go func() { refused <- s.Take(ctx, "b", time.Minute) == nil }()
		synctest.Wait()
		cancel()
		if !<-refused {
			t.Error("it went away and has a turn")
		}
		if s.Take(t.Context(), "b", time.Millisecond) != nil {
			t.Error("it waited too long and has a turn")
		}
		ctx, cancel = context.WithCancel(t.Context())
		for i := range maxTurns {
			go s.Take(ctx, "c", time.Minute)
			if i%100 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		if s.Take(t.Context(), "c", time.Minute) != nil {
			t.Error("one too many has a turn")
		}
		cancel()
		synctest.Wait()
		held.End()
		if again := s.Take(t.Context(), "d", 0); again == nil || len(s.users) != 0 || len(s.ring) != 0 {
			t.Errorf("left over: %+v", fmt.Sprint(s.users, s.ring))
		}
	})
}

// TestBackgroundTurns checks that components have fewer turns while users send requests, and that a request that waits for the disk gives
// its turn up.
func TestBackgroundTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var users Users
		s := NewBackgroundTurns(2, 1, &users)
		free := func(want int, when string) {
			t.Helper()
			synctest.Wait()
			if got := len(s.holders); got != want {
				t.Errorf("%s: %d have a turn, want %d", when, got, want)
			}
		}
		came, next := s.line(t.Context(), "a1", "a2", "a3")
		free(2, "without users")
		users.Note()
		<-came
		next <- struct{}{}
		free(1, "with users, when one of two has ended")
		<-came
		next <- struct{}{}
		free(1, "when the other has")
		if who := <-came; who != "a3" {
			t.Errorf("%s came", who)
		}
		time.Sleep(lingers)
		others, more := s.line(t.Context(), "b1")
		free(2, "when the users have gone")
		for range 2 {
			select {
			case next <- struct{}{}:
			case more <- struct{}{}:
			}
		}
		<-others
		free(0, "at the end")

		users.Note()
		first := s.Take(t.Context(), "c", 0)
		ctx := context.WithValue(t.Context(), TurnKey, first)
		back := Away(ctx)
		free(0, "away")
		second := s.Take(t.Context(), "d", 0)
		returned := false
		go func() { back(); returned = true }()
		free(1, "the other one's")
		if returned {
			t.Error("two have a turn")
		}
		second.End()
		free(1, "back")
		if !returned || !first.held {
			t.Error("it has no turn again")
		}
		first.End()

		plain := NewTurns(1)
		ordinary := plain.Take(t.Context(), "u", 0)
		Away(context.WithValue(t.Context(), TurnKey, ordinary))()
		if Away(t.Context())(); !ordinary.held || len(plain.holders) != 1 {
			t.Error("a user's request has lost its turn")
		}
		ordinary.End()
	})
}
