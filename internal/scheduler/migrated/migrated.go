// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package migrated translates volumes of the former in-tree drivers to those of the CSI drivers that replace them (KEP-625).
package migrated

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	translation "k8s.io/csi-translation-lib"
	"k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"
)

// Drivers translates volumes.
type Drivers struct{ translation.CSITranslator }

// New returns a translator.
func New() Drivers { return Drivers{translation.New()} }

// On reports whether an in-tree driver is migrated: all that are left are.
func On(driver string) bool {
	switch driver {
	case plugins.AWSEBSInTreePluginName, plugins.GCEPDInTreePluginName, plugins.AzureDiskInTreePluginName, plugins.CinderInTreePluginName,
		plugins.PortworxVolumePluginName:
		return true
	}
	return false
}

// Volume returns the volume as the node's CSI driver sees it, or unchanged if no such driver is on the node. The node may be nil.
func (d Drivers) Volume(pv *corev1.PersistentVolume, node *storagev1.CSINode) (*corev1.PersistentVolume, error) {
	if !d.IsPVMigratable(pv) {
		return pv, nil
	}
	driver, err := d.GetInTreePluginNameFromSpec(pv, nil)
	if err != nil {
		return nil, fmt.Errorf("could not get plugin name from pv: %w", err) // upstream's words
	}
	if node == nil || !On(driver) || !slices.Contains(strings.Split(node.Annotations[corev1.MigratedPluginsAnnotationKey], ","), driver) {
		return pv, nil
	}
	csi, err := d.TranslateInTreePVToCSI(klog.Logger{}, pv)
	if err != nil {
		return nil, fmt.Errorf("could not translate pv: %w", err) // upstream's words
	}
	return csi, nil
}
