// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package pullmanager decides whether a pod may use an image that is on the node already (KEP-2535, KubeletEnsureSecretPulledImages).
// Without it, every tenant could use an image that another one pulled with a secret.
//
// The Manager keeps kubelet's records, in kubelet's format and in kubelet's directories below the node's directory:
//
//   - image_manager/pulling: an ImagePullIntent for each image that is being pulled. The node writes it before it calls the
//     runtime, so that a pulled image does not look like a preloaded one after a crash.
//   - image_manager/pulled: an ImagePulledRecord for each pulled image, with the secrets and service accounts that gave access to it. A
//     pull without either opens the image to all pods.
//
// [Manager.MustPull] decides by these. Take an image that a pod pulled with the secret a/s. A pod with a/s, or with a secret
// of the same login, may use it; any other must pull, so that the registry decides. If the Manager cannot read a record, or there is an
// intent without a record, every pod must pull.
//
// A Manager is safe for concurrent use. Writes are on disk when a method returns.
package pullmanager

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/distribution/reference"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// mostSecrets is upstream's maximum of secrets that a record takes over from pods that did not pull.
const mostSecrets = 100

// Sources are where a pod's credentials for an image come from.
type Sources struct {
	Secrets []configv1beta1.ImagePullSecret
	// Account is the service account whose token a credential provider turned into credentials; nil: none. As with kubelet, the token's
	// audience makes no difference.
	Account *configv1beta1.ImagePullServiceAccount
}

// Lookup returns the sources of the pod's credentials for an image.
type Lookup func() (Sources, error)

// Options configure a Manager.
type Options struct {
	Dir       string // the node's directory
	Policy    configv1beta1.ImagePullCredentialsVerificationPolicy
	Allowlist []string
	Logger    *slog.Logger
	Now       func() time.Time
	// Images lists the images of the runtime.
	Images func() ([]*runtimeapi.Image, error)
}

// Manager keeps the records.
type Manager struct {
	pulling, pulled string
	policy          *policy
	logger          *slog.Logger
	now             func() time.Time

	mu      sync.Mutex
	intents map[string]int // pulls in progress, by image
	checks  map[string]int // results of MustPull, by upstream's names
}

// Open makes the directories, and turns the intents of interrupted pulls into records without credentials.
func Open(o Options) (*Manager, error) {
	p, err := newPolicy(o.Policy, o.Allowlist)
	if err != nil {
		return nil, fmt.Errorf("read preloadedImagesVerificationAllowlist: %w", err)
	}
	dir := filepath.Join(o.Dir, "image_manager")
	m := &Manager{
		pulling: filepath.Join(dir, "pulling"), pulled: filepath.Join(dir, "pulled"), policy: p, logger: o.Logger, now: o.Now,
		intents: map[string]int{}, checks: map[string]int{},
	}
	for _, dir := range []string{m.pulling, m.pulled} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make directory of image records: %w", err)
		}
	}
	m.recover(o.Images)
	return m, nil
}

// recover checks the images of intents. A missing image keeps its intent, and so counts as pulled.
func (m *Manager) recover(list func() ([]*runtimeapi.Image, error)) {
	cut := map[string][]string{}
	if err := each(m.pulling, func(_ string, text []byte) error {
		intent, err := decodeIntent(text, "")
		if err == nil {
			cut[normalized(intent.Image)] = append(cut[normalized(intent.Image)], intent.Image)
		}
		return err
	}); err != nil {
		m.logger.Warn("Could not read some intents to pull images, skipping them", "err", err)
	}
	if len(cut) == 0 {
		return
	}
	images, err := list()
	if err != nil {
		m.logger.Warn("Could not list the images of interrupted pulls, verifying credentials for them", "err", err)
		return
	}
	for _, i := range images {
		for _, name := range slices.Concat(i.RepoTags, i.RepoDigests) {
			for _, image := range cut[normalized(name)] {
				err := m.record(image, i.Id, nil)
				if err == nil {
					err = remove(m.pulling, image)
				}
				if err != nil {
					m.logger.Warn("Could not record the image of an interrupted pull", "image", image, "err", err)
				}
			}
		}
	}
}

// normalized returns an image's name with registry and tag, as the runtime writes it.
func normalized(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return image
	}
	return reference.TagNameOnly(named).String()
}

// Intend records that the image, by the container's name for it, is about to be pulled. Pulled or Failed end the intent.
func (m *Manager) Intend(image string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := writeIntent(m.pulling, image); err != nil {
		return fmt.Errorf("failed to record image pull intent: %w", err) // upstream's words
	}
	m.intents[image]++
	return nil
}

// Pulled records that the image was pulled as ref with credentials of these sources: one secret, or one account, or neither. After an error
// the intent stays, and so the verification.
func (m *Manager) Pulled(image, ref string, s Sources) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &configv1beta1.ImagePullCredentials{KubernetesSecrets: s.Secrets}
	if s.Account != nil {
		c.KubernetesServiceAccounts = []configv1beta1.ImagePullServiceAccount{*s.Account}
	}
	c.NodePodsAccessible = len(s.Secrets) == 0 && s.Account == nil
	if err := m.record(image, ref, c); err != nil {
		return fmt.Errorf("record pulled image: %w", err)
	}
	return m.end(image)
}

// Failed records that the image was not pulled.
func (m *Manager) Failed(image string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.end(image)
}

func (m *Manager) end(image string) error {
	if m.intents[image] > 1 {
		m.intents[image]--
		return nil
	}
	if err := remove(m.pulling, image); err != nil {
		return err
	}
	delete(m.intents, image)
	return nil
}

// record merges credentials into the image's record; with nil credentials it only creates a missing record.
func (m *Manager) record(image, ref string, credentials *configv1beta1.ImagePullCredentials) error {
	name, err := repository(image)
	if err != nil {
		return fmt.Errorf("invalid image name %q: %w", image, err)
	}
	r, err := readPulled(m.pulled, ref)
	if err != nil {
		m.logger.Warn("Could not read the record of a pulled image, rewriting it", "image", image, "err", err)
		r = nil
	}
	fresh := r == nil
	if fresh {
		r = &configv1beta1.ImagePulledRecord{ImageRef: ref}
	}
	changed := false
	if credentials != nil {
		if r.CredentialMapping == nil {
			r.CredentialMapping = map[string]configv1beta1.ImagePullCredentials{}
		}
		var merged configv1beta1.ImagePullCredentials
		merged, changed = merge(r.CredentialMapping[name], *credentials)
		r.CredentialMapping[name] = merged
	}
	if !fresh && !changed {
		return nil
	}
	r.LastUpdatedTime = metav1.NewTime(m.now())
	return writePulled(m.pulled, r)
}

// merge adds credentials to existing ones. A secret counts once, with its newest hash; so does an account. An image that is open to all
// pods stays so, and needs no secrets.
func merge(has, more configv1beta1.ImagePullCredentials) (configv1beta1.ImagePullCredentials, bool) {
	switch {
	case has.NodePodsAccessible:
		return has, false
	case more.NodePodsAccessible:
		return configv1beta1.ImagePullCredentials{NodePodsAccessible: true}, true
	}
	out, changed := has, false
	out.KubernetesSecrets = slices.Clone(has.KubernetesSecrets)
	for _, s := range more.KubernetesSecrets {
		at := slices.IndexFunc(out.KubernetesSecrets, func(o configv1beta1.ImagePullSecret) bool { return same(o, s) })
		switch {
		case at < 0:
			out.KubernetesSecrets, changed = append(out.KubernetesSecrets, s), true
		case out.KubernetesSecrets[at].CredentialHash != s.CredentialHash:
			out.KubernetesSecrets[at], changed = s, true
		}
	}
	slices.SortFunc(out.KubernetesSecrets, func(a, b configv1beta1.ImagePullSecret) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	out.KubernetesServiceAccounts = slices.Clone(has.KubernetesServiceAccounts)
	for _, a := range more.KubernetesServiceAccounts {
		if !slices.Contains(out.KubernetesServiceAccounts, a) {
			out.KubernetesServiceAccounts, changed = append(out.KubernetesServiceAccounts, a), true
		}
	}
	slices.SortFunc(out.KubernetesServiceAccounts, func(a, b configv1beta1.ImagePullServiceAccount) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return out, changed
}

// same reports whether both are the same secret, with any login.
func same(a, b configv1beta1.ImagePullSecret) bool {
	return a.UID == b.UID && a.Namespace == b.Namespace && a.Name == b.Name
}

// The results of checks, under upstream's names.
const (
	policyAllowed    = "credentialPolicyAllowed"
	recordFound      = "credentialRecordFound"
	mustAuthenticate = "mustAuthenticate"
	checkError       = "error"
)

// MustPull reports whether a pod must pull the image, which is on the node as ref, to use it. It calls lookup only
// if the record does not decide. An error is lookup's.
func (m *Manager) MustPull(image, ref string, lookup Lookup) (bool, error) {
	result, err := m.check(image, ref, lookup)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.checks[result]++
	return result == mustAuthenticate || result == checkError, err
}

// Checks returns the number of MustPull's results so far, by reason, as in kubelet_imagemanager_image_mustpull_checks_total.
func (m *Manager) Checks() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.checks)
}

// Records returns the numbers of recorded intents and pulled images.
func (m *Manager) Records() (intents, pulled int, err error) {
	names, err := recordsIn(m.pulling)
	if err != nil {
		return 0, 0, err
	}
	intents = len(names)
	names, err = recordsIn(m.pulled)
	return intents, len(names), err
}

func (m *Manager) check(image, ref string, lookup Lookup) (result string, err error) {
	record, pulled, err := m.known(image, ref)
	if err != nil {
		m.logger.Warn("Could not read a record of pulled images, pulling the image again", "image", image, "err", err)
		return checkError, nil
	}
	if !m.policy.verifies(image, pulled) {
		return policyAllowed, nil
	}
	name, err := repository(image)
	if err != nil {
		m.logger.Warn("Could not parse the name of an image, pulling it again", "image", image, "err", err)
		return checkError, nil
	}
	if record == nil {
		return mustAuthenticate, nil
	}
	known := record.CredentialMapping[name]
	switch {
	case known.NodePodsAccessible:
		return recordFound, nil
	case len(known.KubernetesSecrets)+len(known.KubernetesServiceAccounts) == 0:
		return mustAuthenticate, nil
	}
	shown, err := lookup()
	if err != nil {
		return checkError, err
	}
	for _, s := range shown.Secrets {
		for _, k := range known.KubernetesSecrets {
			login, secret, room := k.CredentialHash != "" && k.CredentialHash == s.CredentialHash, same(k, s),
				len(known.KubernetesSecrets) < mostSecrets
			if !login && !(secret && room) {
				continue
			}
			if login != secret && room {
				m.adopt(image, ref, s)
			}
			return recordFound, nil
		}
	}
	if shown.Account != nil && slices.Contains(known.KubernetesServiceAccounts, *shown.Account) {
		return recordFound, nil
	}
	return mustAuthenticate, nil
}

// known reads the image's record, and reports whether the node pulled the image or was about to.
func (m *Manager) known(image, ref string) (record *configv1beta1.ImagePulledRecord, pulled bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if record, err = readPulled(m.pulled, ref); err != nil || record != nil || m.intents[image] > 0 {
		return record, true, err
	}
	intent, err := readIntent(m.pulling, image)
	return nil, intent != nil, err
}

// adopt adds another secret with a known login, or the new login of a known secret, to the record for the next time.
func (m *Manager) adopt(image, ref string, s configv1beta1.ImagePullSecret) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.record(image, ref, &configv1beta1.ImagePullCredentials{KubernetesSecrets: []configv1beta1.ImagePullSecret{s}}); err != nil {
		m.logger.Warn("Could not record the secret of an image", "image", image, "err", err)
	}
}

// Prune removes the records of images that are not among refs, if they are older than that list.
func (m *Manager) Prune(refs []string, listed time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	listed = listed.Truncate(time.Second) // as precise as records
	var gone []string
	err := each(m.pulled, func(_ string, text []byte) error {
		r, err := decodePulled(text, "")
		if err == nil && r.LastUpdatedTime.Time.Before(listed) && !slices.Contains(refs, r.ImageRef) {
			gone = append(gone, r.ImageRef)
		}
		return err
	})
	for _, ref := range gone {
		err = errors.Join(err, remove(m.pulled, ref))
	}
	return err
}
