// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mortise-dev/mortise/internal/durable"
)

// Cache keeps tokens in a directory, with one file per source, which only its owner can read.
type Cache struct {
	Dir string
	Now func() time.Time
	// Client is the process that requests the token. If it asks again while its token is valid, the server has refused that token, and Get
	// returns another.
	Client int
}

// Limits of the cache.
const (
	maxTokens  = 64
	maxClients = 32
	margin     = time.Minute // a token is not returned so shortly before its end; a tenth of its life, if that is less
)

type kept struct {
	Token
	Got    time.Time `json:"got"`
	Served []int     `json:"served"` // the processes that received it, the newest last
}

// Get returns the cached token, or a new one. notKept is set if the token could not be cached; the token is valid nevertheless.
func (c *Cache) Get(ctx context.Context, s Source) (t Token, notKept, err error) {
	if c.Dir == "" || s.Name() == "" {
		t, err = s.Get(ctx)
		return t, nil, err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		t, err2 := s.Get(ctx)
		return t, fmt.Errorf("make cache: %w", err), err2
	}
	file := filepath.Join(c.Dir, s.Name()+".json")
	unlock, err := lock(file + ".lock") // one process requests a token, the others wait for it
	if err != nil {
		t, err2 := s.Get(ctx)
		return t, fmt.Errorf("lock cache: %w", err), err2
	}
	defer unlock()
	if k, ok := c.read(file); ok && c.good(k) && !slices.Contains(k.Served, c.Client) {
		k.Served = append(k.Served, c.Client)
		if n := len(k.Served) - maxClients; n > 0 {
			k.Served = k.Served[n:]
		}
		return k.Token, c.write(file, k), nil
	}
	if t, err = s.Get(ctx); err != nil {
		return Token{}, nil, err
	}
	if t.Expires.IsZero() {
		return t, nil, nil // its validity is unknown
	}
	c.prune(file)
	return t, c.write(file, kept{Token: t, Got: c.Now(), Served: []int{c.Client}}), nil
}

func (c *Cache) good(k kept) bool {
	early := min(margin, k.Expires.Sub(k.Got)/10)
	return k.Token.Token != "" && c.Now().Before(k.Expires.Add(-early))
}

// read returns false if the file does not exist or is malformed.
func (c *Cache) read(file string) (kept, bool) {
	var k kept
	b, err := os.ReadFile(file)
	if err != nil || len(b) > maxFile || json.Unmarshal(b, &k) != nil {
		return kept{}, false
	}
	return k, true
}

func (c *Cache) write(file string, k kept) error {
	b, err := json.Marshal(k)
	if err != nil {
		return fmt.Errorf("keep token: %w", err)
	}
	return durable.Write(file, 0o600, b)
}

// prune removes expired tokens, and the oldest of too many.
func (c *Cache) prune(but string) {
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return
	}
	type old struct {
		file string
		got  time.Time
	}
	var all []old
	for _, e := range entries {
		file := filepath.Join(c.Dir, e.Name())
		if !strings.HasSuffix(file, ".json") || file == but {
			continue
		}
		k, ok := c.read(file)
		if !ok || !c.good(k) {
			remove(file)
			continue
		}
		all = append(all, old{file, k.Got})
	}
	slices.SortFunc(all, func(a, b old) int { return cmp.Compare(a.got.UnixNano(), b.got.UnixNano()) })
	for len(all) >= maxTokens {
		remove(all[0].file)
		all = all[1:]
	}
}

// remove removes a token and its lock; another process may already have done so.
func remove(file string) {
	for _, f := range []string{file, file + ".lock"} {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
}
