// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"io"
)

// subcommand is a process that a row starts from this program: a client, a server or a node beside the server that is measured. It ends
// when its input does.
type subcommand func(ctx context.Context, in io.Reader, out io.Writer) error

// Subcommands returns the subcommands by their names.
func Subcommands() map[string]subcommand {
	all := map[string]subcommand{
		aggregatedChild: func(_ context.Context, in io.Reader, out io.Writer) error { return beAggregated(in, out) },
		embedChild:      func(ctx context.Context, _ io.Reader, out io.Writer) error { return embedTwice(ctx, out) },
		meteredChild:    func(_ context.Context, in io.Reader, out io.Writer) error { return beMetered(in, out) },
		noisyChild:      beNoisy,
		plainChild:      func(_ context.Context, in io.Reader, out io.Writer) error { return bePlain(in, out) },
		pluginChild:     func(ctx context.Context, in io.Reader, _ io.Writer) error { return beDevicePlugin(ctx, in) },
		podsChild:       func(context.Context, io.Reader, io.Writer) error { return beNodesInit(podsMeasurer) },
		podsMeasurer:    bePods,
		claimsChild:     func(context.Context, io.Reader, io.Writer) error { return beNodesInit(claimsMeasurer) },
		claimsMeasurer:  beClaims,
		quietChild:      beQuiet,
		stallsChild:     func(_ context.Context, in io.Reader, out io.Writer) error { return lookAfterProcessors(in, out) },
	}
	for _, backend := range proxiedBy() {
		all[proxiedChild+string(backend)] = func(ctx context.Context, _ io.Reader, out io.Writer) error { return beProxied(ctx, backend, out) }
	}
	return all
}
