// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"github.com/mortise-dev/mortise/internal/controllers"
)

// cluster is what controllers are told of the cluster: its layout, and what the options say.
func (p *parts) cluster(o *settled) controllers.Cluster {
	c, n := o.apiserver.Controllers, o.apiserver.Controllers.Nodes
	return controllers.Cluster{
		RootCA: p.pki.CA.CertPEM, Signer: &controllers.Authority{Certificate: p.pki.CA.Certificate, Key: p.pki.CA.Key},
		PodCIDRs: o.podCIDRs, ServiceCIDR: o.serviceCIDRs[0],
		AdvertiseAddress: p.advertise(o), AdvertisePort: p.port(), Tokens: p.tokens(), Initializers: o.apiserver.Admission.Initializers,

		Signers: p.signers(o), SigningLife: orZero(c.Signing.Duration), PodRootCA: o.signing.rootCA,

		FinishedPods: c.FinishedPods, MirroredAddresses: orZero(c.MirroredAddresses), LegacyTokenPeriod: orZero(c.LegacyTokenPeriod),
		Endpoints: controllers.Endpoints{
			PerSlice: orZero(c.Endpoints.PerSlice), Batch: orZero(c.Endpoints.Batch), SliceBatch: orZero(c.Endpoints.SliceBatch), MirrorBatch: orZero(c.Endpoints.MirrorBatch),
		},
		Syncs: c.Syncs, QuotaPeriod: orZero(c.QuotaPeriod), NodeMaskIPv4: o.nodeMasks.IPv4, NodeMaskIPv6: o.nodeMasks.IPv6,
		NodeHealth: controllers.NodeHealth{
			Grace: orZero(n.Grace), StartupGrace: orZero(n.StartupGrace), Period: orZero(n.Period),
			EvictionRate: n.EvictionRate, SecondaryEvictionRate: n.SecondaryEvictionRate, LargeZone: n.LargeZone, UnhealthyZone: n.UnhealthyZone,
		},
	}
}

func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
