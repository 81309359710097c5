// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package machine

// Socket returns the socket of the containerd that Prepare starts below a data directory, whether or not it runs.
func Socket(dataDir string) (string, error) {
	d, err := at(dataDir)
	return d.socket, err
}
