// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	policyconfig "k8s.io/apiserver/pkg/admission/plugin/policy/config"
	webhookconfig "k8s.io/apiserver/pkg/admission/plugin/webhook/config"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/alwaysadmit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/alwaysdeny"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/alwayspullimages"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/certificateapproval"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/certificatesigning"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/certificatesubjectrestriction"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/clustertrustbundleattest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/defaultingressclass"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/defaultstorageclass"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/defaulttolerationseconds"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/eventratelimit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/extendedresources"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/imagepolicy"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/limitranger"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/namespaceautoprovision"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/namespaceexists"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/namespacelifecycle"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/nodefeatures"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/noderestriction"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/ownerreferences"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/podantiaffinity"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/podnodeselector"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/podresize"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/podsecurity"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/podtolerations"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/podtopologylabels"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/policy"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/priority"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/resourcequota"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/runtimeclass"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/serviceaccount"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/serviceexternalips"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/storageprotection"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/taintnodes"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/volumeresize"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/webhook"
	"github.com/mortise-dev/mortise/internal/kinds/podspec"
)

// AdmissionOptions select and configure the built-in admission plug-ins. The zero value is kube-apiserver's default.
type AdmissionOptions struct {
	Enable, Disable []string
	// NotReadySeconds and UnreachableSeconds are how long pods stay on such nodes by themselves; nil: as long as ever.
	NotReadySeconds, UnreachableSeconds *int64
	// More are plug-ins of third parties. They come after those that are built in, but before quota is charged.
	More []admit.Plugin
	// Configuration is what an AdmissionConfiguration says for a plug-in, nil where it says nothing; nil: there is no file.
	Configuration func(name string) (io.Reader, error)
	// Webhooks is how carefully webhooks are called.
	Webhooks webhook.Protection
}

// admissionPlugin is one row of the plug-ins: make is nil for one of upstream's that this release does not have, off for one
// that is not on by itself.
type admissionPlugin struct {
	name string
	off  bool
	make func(config io.Reader) (admit.Plugin, error)
}

// release is the one of Kubernetes that this is.
const release = "1.37.1"

// plain is a plug-in without configuration.
func plain[P admit.Plugin](p func() P) func(io.Reader) (admit.Plugin, error) {
	return func(io.Reader) (admit.Plugin, error) { return p(), nil }
}

// admissionPlugins are all of kube-apiserver's, in its order.
func admissionPlugins(o AdmissionOptions) []admissionPlugin {
	return []admissionPlugin{
		{name: "AlwaysAdmit", off: true, make: plain(alwaysadmit.New)},
		{name: "NamespaceAutoProvision", off: true, make: plain(namespaceautoprovision.New)},
		{name: "NamespaceLifecycle", make: plain(namespacelifecycle.New)},
		{name: "NamespaceExists", off: true, make: plain(namespaceexists.New)},
		{name: "LimitPodHardAntiAffinityTopology", off: true, make: plain(podantiaffinity.New)},
		{name: "LimitRanger", make: plain(limitranger.New)},
		{name: "ServiceAccount", make: func(io.Reader) (admit.Plugin, error) { return serviceaccount.New(serviceaccount.Options{}), nil }},
		{name: "NodeRestriction", make: plain(noderestriction.New)}, // on here, unlike upstream: nodes are on by themselves too
		{name: "TaintNodesByCondition", make: plain(taintnodes.New)},
		{name: "AlwaysPullImages", off: true, make: plain(alwayspullimages.New)},
		{name: "ImagePolicyWebhook", off: true, make: imagepolicy.New},
		{name: "PodSecurity", make: podsecurity.New},
		{name: "PodNodeSelector", off: true, make: podnodeselector.New},
		{name: "Priority", make: plain(priority.New)},
		{name: "DefaultTolerationSeconds", make: func(io.Reader) (admit.Plugin, error) {
			seconds := defaulttolerationseconds.Usually()
			seconds.NotReady = ptr.Deref(o.NotReadySeconds, seconds.NotReady)
			seconds.Unreachable = ptr.Deref(o.UnreachableSeconds, seconds.Unreachable)
			return defaulttolerationseconds.New(seconds), nil
		}},
		{name: "PodTolerationRestriction", off: true, make: func(r io.Reader) (admit.Plugin, error) {
			return podtolerations.New(r, podtolerations.Kinds{QOSClass: podspec.QOSClass, Check: podspec.CheckTolerations})
		}},
		{name: "EventRateLimit", off: true, make: func(r io.Reader) (admit.Plugin, error) { return eventratelimit.New(r, clock.RealClock{}) }},
		{name: "ExtendedResourceToleration", off: true, make: plain(extendedresources.New)},
		{name: "DefaultStorageClass", make: plain(defaultstorageclass.New)},
		{name: "StorageObjectInUseProtection", make: plain(storageprotection.New)},
		{name: "PodGroupProtection"},
		{name: "OwnerReferencesPermissionEnforcement", off: true, make: plain(ownerreferences.New)},
		{name: "PersistentVolumeClaimResize", make: plain(volumeresize.New)},
		{name: "RuntimeClass", make: plain(runtimeclass.New)},
		{name: "CertificateApproval", make: plain(certificateapproval.New)},
		{name: "CertificateSigning", make: plain(certificatesigning.New)},
		{name: "ClusterTrustBundleAttest", make: plain(clustertrustbundleattest.New)},
		{name: "CertificateSubjectRestriction", make: plain(certificatesubjectrestriction.New)},
		{name: "DefaultIngressClass", make: plain(defaultingressclass.New)},
		{name: "DenyServiceExternalIPs", off: true, make: plain(serviceexternalips.New)},
		{name: "PodTopologyLabels", make: plain(podtopologylabels.New)},
		{name: "NodeDeclaredFeatureValidator", make: func(io.Reader) (admit.Plugin, error) { return nodefeatures.New(release) }},
		{name: "PodResizeValidator", make: plain(podresize.New)},
		{name: "MutatingAdmissionPolicy", make: func(r io.Reader) (admit.Plugin, error) {
			c, err := policyconfig.LoadMutatingConfig(r)
			return policy.NewMutating(policy.Options{Manifests: c.StaticManifestsDir}), err
		}},
		{name: "MutatingAdmissionWebhook", make: func(r io.Reader) (admit.Plugin, error) {
			o, err := webhookOptions(r)
			return webhook.NewMutating(o), err
		}},
		{name: "ValidatingAdmissionPolicy", make: func(r io.Reader) (admit.Plugin, error) {
			c, err := policyconfig.LoadValidatingConfig(r)
			return policy.NewValidating(policy.Options{Manifests: c.StaticManifestsDir}), err
		}},
		{name: "ValidatingAdmissionWebhook", make: func(r io.Reader) (admit.Plugin, error) {
			o, err := webhookOptions(r)
			return webhook.NewValidating(o), err
		}},
		{name: "ResourceQuota", make: func(r io.Reader) (admit.Plugin, error) { return resourcequota.New(resourcequota.Options{Config: r}) }},
		{name: "AlwaysDeny", off: true, make: plain(alwaysdeny.New)},
	}
}

func webhookOptions(r io.Reader) (webhook.Options, error) {
	c, err := webhookconfig.LoadConfig(r)
	if err != nil {
		return webhook.Options{}, err
	}
	return webhook.Options{Kubeconfig: c.KubeConfigFile, Manifests: c.StaticManifestsDir}, nil
}

// Admission is the built-in admission plug-ins, in kube-apiserver's order.
func Admission(o AdmissionOptions) (admit.Chain, error) {
	all, err := withMore(admissionPlugins(o), o.More)
	if err == nil {
		err = checkAdmission(all, o)
	}
	if err != nil {
		return nil, err
	}
	var chain admit.Chain
	for _, p := range all {
		if p.make == nil || slices.Contains(o.Disable, p.name) || p.off && !slices.Contains(o.Enable, p.name) {
			continue
		}
		var config io.Reader
		if o.Configuration != nil {
			var err error
			if config, err = o.Configuration(p.name); err != nil {
				return nil, fmt.Errorf("read configuration of admission plug-in %s: %w", p.name, err)
			}
		}
		made, err := p.make(config)
		if err != nil {
			return nil, fmt.Errorf("make admission plug-in %s: %w", p.name, err)
		}
		if w, ok := made.(webhook.Protected); ok {
			w.Protect(o.Webhooks)
		}
		chain = append(chain, made)
	}
	return chain, nil
}

// withMore puts the plug-ins of third parties in their place.
func withMore(all []admissionPlugin, more []admit.Plugin) ([]admissionPlugin, error) {
	at := slices.IndexFunc(all, func(p admissionPlugin) bool { return p.name == "ResourceQuota" })
	for _, p := range more {
		if slices.ContainsFunc(all, func(o admissionPlugin) bool { return o.name == p.Name() }) {
			return nil, fmt.Errorf("there are two admission plug-ins %q", p.Name())
		}
		all = slices.Insert(all, at, admissionPlugin{name: p.Name(), make: func(config io.Reader) (admit.Plugin, error) {
			if c, ok := p.(admit.Configured); ok {
				return p, c.Configure(config)
			}
			return p, nil
		}})
		at++
	}
	return all, nil
}

func checkAdmission(all []admissionPlugin, o AdmissionOptions) error {
	known := map[string]*admissionPlugin{}
	for i := range all {
		known[all[i].name] = &all[i]
	}
	var errs []error
	for _, name := range o.Enable {
		switch p := known[name]; {
		case p == nil:
			errs = append(errs, fmt.Errorf("enable-admission-plugins plugin %q is unknown", name)) // upstream's words
		case p.make == nil && p.off:
			errs = append(errs, fmt.Errorf("enable-admission-plugins plugin %q is not in this release", name))
		}
	}
	for _, name := range o.Disable {
		if known[name] == nil {
			errs = append(errs, fmt.Errorf("disable-admission-plugins plugin %q is unknown", name)) // upstream's words
		}
	}
	if both := sets.New(o.Enable...).Intersection(sets.New(o.Disable...)); both.Len() > 0 {
		// upstream's words
		errs = append(errs, fmt.Errorf("%v in enable-admission-plugins and disable-admission-plugins overlapped", sets.List(both)))
	}
	return errors.Join(errs...)
}
