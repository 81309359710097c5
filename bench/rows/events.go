// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
)

// written is how many events there were when last there were more, when that was, and the CPU that the server had used by then.
type written struct {
	events int
	at     time.Time
	cpu    time.Duration
}

// untilWritten counts events until there are n, or no more came for 5 s. A server may write them later than what they tell of. mixed says
// that others than those of scheduled pods are among them, which takes all of them to be listed, and counts in CPU.
func untilWritten(ctx context.Context, t *load.Target, client *http.Client, base string, n int, mixed bool) (*written, error) {
	query, every := "?limit=1", 100*time.Millisecond
	if mixed {
		query, every = "?limit=500&fieldSelector=reason%3DScheduled", time.Second
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	w := &written{events: -1}
	for {
		events, err := count(ctx, client, base+query)
		if err != nil {
			return nil, err
		}
		if events > w.events {
			w.events, w.at = events, time.Now()
			if w.cpu, err = t.Cpu(); err != nil {
				return nil, err
			}
		}
		if w.events >= n || time.Since(w.at) > 5*time.Second {
			return w, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticker.C:
		}
	}
}

// count is how many objects a list has. A server says how many there are after a page unless it selects from them: then all pages are read.
func count(ctx context.Context, client *http.Client, list string) (n int, err error) {
	for next := ""; ; {
		var page struct {
			Metadata struct {
				Continue           string
				RemainingItemCount *int
			}
			Items []struct{}
		}
		if err := listNames(ctx, client, list+next, &page); err != nil {
			return 0, err
		}
		n += len(page.Items)
		if page.Metadata.RemainingItemCount != nil {
			return n + *page.Metadata.RemainingItemCount, nil
		}
		if page.Metadata.Continue == "" {
			return n, nil
		}
		next = "&continue=" + url.QueryEscape(page.Metadata.Continue)
	}
}

// listNames decodes a list into page.
func listNames(ctx context.Context, client *http.Client, url string, page any) error {
	request, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("list %s: status %d", url, response.StatusCode)
	}
	answer, err := io.ReadAll(response.Body) // to its end, so that the connection is kept
	if err == nil {
		err = json.Unmarshal(answer, page)
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", url, err)
	}
	return nil
}
