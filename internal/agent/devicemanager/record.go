// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicemanager

// Record is the checkpoint as a record of which resources the node's plug-ins had.
type Record struct{ keeper keeper }

// Missing reports whether the node started without a checkpoint that can be read, and Begin has not made one since. Extended resources of
// an existing Node are then of a machine that is gone, or of plug-ins that are.
func (r Record) Missing() bool { return r.keeper.unrecorded.Load() }

// Begin makes a checkpoint, so that the next start keeps the extended resources that other clients add to the Node.
func (r Record) Begin() error {
	if err := r.keeper.write(); err != nil {
		return err
	}
	r.keeper.unrecorded.Store(false)
	return nil
}
