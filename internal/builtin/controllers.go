// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/attachdetach"
	"github.com/mortise-dev/mortise/internal/controllers/bootstraptokens"
	"github.com/mortise-dev/mortise/internal/controllers/certificaterequests"
	"github.com/mortise-dev/mortise/internal/controllers/claimprotection"
	"github.com/mortise-dev/mortise/internal/controllers/clusterroleaggregation"
	"github.com/mortise-dev/mortise/internal/controllers/cronjob"
	"github.com/mortise-dev/mortise/internal/controllers/daemonset"
	"github.com/mortise-dev/mortise/internal/controllers/deployment"
	"github.com/mortise-dev/mortise/internal/controllers/devicetaint"
	"github.com/mortise-dev/mortise/internal/controllers/disruption"
	"github.com/mortise-dev/mortise/internal/controllers/endpoints"
	"github.com/mortise-dev/mortise/internal/controllers/endpointslice"
	"github.com/mortise-dev/mortise/internal/controllers/endpointslicemirroring"
	"github.com/mortise-dev/mortise/internal/controllers/ephemeralvolume"
	"github.com/mortise-dev/mortise/internal/controllers/garbagecollector"
	"github.com/mortise-dev/mortise/internal/controllers/job"
	"github.com/mortise-dev/mortise/internal/controllers/kubernetesservice"
	"github.com/mortise-dev/mortise/internal/controllers/localprovisioner"
	"github.com/mortise-dev/mortise/internal/controllers/namespace"
	"github.com/mortise-dev/mortise/internal/controllers/nodeipam"
	"github.com/mortise-dev/mortise/internal/controllers/nodelifecycle"
	"github.com/mortise-dev/mortise/internal/controllers/nodettl"
	"github.com/mortise-dev/mortise/internal/controllers/podautoscaler"
	"github.com/mortise-dev/mortise/internal/controllers/podgc"
	"github.com/mortise-dev/mortise/internal/controllers/policystatus"
	"github.com/mortise-dev/mortise/internal/controllers/replicaset"
	"github.com/mortise-dev/mortise/internal/controllers/resourceclaim"
	"github.com/mortise-dev/mortise/internal/controllers/resourcequota"
	"github.com/mortise-dev/mortise/internal/controllers/rootca"
	"github.com/mortise-dev/mortise/internal/controllers/serviceaccount"
	"github.com/mortise-dev/mortise/internal/controllers/servicecidr"
	"github.com/mortise-dev/mortise/internal/controllers/servicelb"
	"github.com/mortise-dev/mortise/internal/controllers/statefulset"
	"github.com/mortise-dev/mortise/internal/controllers/storageversionmigrator"
	"github.com/mortise-dev/mortise/internal/controllers/tainteviction"
	"github.com/mortise-dev/mortise/internal/controllers/tokensecrets"
	"github.com/mortise-dev/mortise/internal/controllers/trustbundle"
	"github.com/mortise-dev/mortise/internal/controllers/ttlafterfinished"
	"github.com/mortise-dev/mortise/internal/controllers/volumebinder"
	"github.com/mortise-dev/mortise/internal/controllers/volumeexpand"
	"github.com/mortise-dev/mortise/internal/controllers/volumeprotection"
	"github.com/mortise-dev/mortise/internal/controllers/webhooktrust"
)

// Controllers are the control loops there are.
func Controllers() []controllers.Controller {
	return []controllers.Controller{
		attachdetach.Controller(),
		bootstraptokens.Cleaner(),
		bootstraptokens.Signer(),
		certificaterequests.Approving(),
		certificaterequests.Cleaner(),
		certificaterequests.PodCleaner(),
		certificaterequests.Signing(),
		claimprotection.Controller(),
		clusterroleaggregation.Controller(),
		cronjob.Controller(),
		daemonset.Controller(),
		deployment.Controller(),
		devicetaint.Controller(),
		disruption.Controller(),
		endpoints.Controller(),
		endpointslice.Controller(),
		endpointslicemirroring.Controller(),
		ephemeralvolume.Controller(),
		garbagecollector.Controller(),
		job.Controller(),
		kubernetesservice.Controller(),
		localprovisioner.Controller(),
		namespace.Controller(),
		nodeipam.Controller(),
		nodelifecycle.Controller(),
		nodettl.Controller(),
		podautoscaler.Controller(),
		podgc.Controller(),
		policystatus.Controller(),
		replicaset.Controller(),
		replicaset.ReplicationControllers(),
		resourceclaim.Controller(),
		resourcequota.Controller(),
		rootca.Controller(),
		serviceaccount.Controller(),
		servicecidr.Controller(),
		servicelb.Controller(),
		statefulset.Controller(),
		storageversionmigrator.Controller(),
		tainteviction.Controller(),
		tokensecrets.Cleaner(),
		tokensecrets.Filler(),
		trustbundle.Controller(),
		ttlafterfinished.Controller(),
		volumebinder.Controller(),
		volumeexpand.Controller(),
		volumeprotection.AttributesClasses(),
		volumeprotection.Volumes(),
		webhooktrust.Controller(),
	}
}
