// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"testing"

	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/server"
)

// TestTokensAreReviewedByDefault reads the settings of the node's API where no file configures the node: those of a kubelet.
func TestTokensAreReviewedByDefault(t *testing.T) {
	var none *kubelet
	got := none.settings(server.Options{}).Kubelet
	if got == nil || !*got.Authentication.Webhook.Enabled || *got.Authentication.Anonymous.Enabled ||
		got.Authorization.Mode != configv1beta1.KubeletAuthorizationModeWebhook {
		t.Errorf("the node's API authenticates and authorizes by %+v", got)
	}
}
