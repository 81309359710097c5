// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"fmt"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/defaultingressclass"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/defaultstorageclass"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/defaulttolerationseconds"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/namespacelifecycle"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/noderestriction"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/podresize"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/podsecurity"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/podtopologylabels"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/policy"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/priority"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/runtimeclass"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/serviceaccount"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/storageprotection"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/taintnodes"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/volumeresize"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/webhook"
)

// Admission is the built-in admission plug-ins, in kube-apiserver's order.
func Admission() admit.Chain {
	security, err := podsecurity.New()
	if err != nil {
		panic(fmt.Errorf("built-in pod security checks are inconsistent: %w", err))
	}
	return admit.Chain{
		namespacelifecycle.New(),
		serviceaccount.New(serviceaccount.Options{}),
		noderestriction.New(),
		taintnodes.New(),
		security,
		priority.New(),
		defaulttolerationseconds.New(),
		defaultstorageclass.New(),
		storageprotection.New(),
		volumeresize.New(),
		runtimeclass.New(),
		defaultingressclass.New(),
		podtopologylabels.New(),
		podresize.New(),
		policy.NewMutating(),
		webhook.NewMutating(webhook.Options{}),
		policy.NewValidating(),
		webhook.NewValidating(webhook.Options{}),
	}
}
