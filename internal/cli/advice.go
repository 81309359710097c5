// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mortise-dev/mortise/store"
)

// advice is what to do next after an error.
type advice struct {
	fits func(err error) bool
	do   string
}

// says fits errors whose text has a part: they are made from errors of the system that the text replaces.
func says(part string) func(err error) bool {
	return func(err error) bool { return strings.Contains(err.Error(), part) }
}

// is fits errors that wrap another.
func is(target error) func(err error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

// etcdSays fits errors of the start on an etcd cluster whose text has one of some parts.
func etcdSays(parts ...string) func(err error) bool {
	return func(err error) bool {
		text := err.Error()
		return strings.Contains(text, "etcd at http") &&
			slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
	}
}

// advices is the table: the first that fits is shown.
func advices() []advice {
	return []advice{
		{says("read etcd's authorities"), "--etcd-cafile must name a PEM file with the CA that signed the certificates of etcd's members"},
		{says("the certificate for etcd"), "--etcd-certfile and --etcd-keyfile must name a valid client certificate for etcd, in PEM, and its key"},
		{says("a certificate for etcd needs its key"), "give both --etcd-certfile and --etcd-keyfile, or none"},
		{etcdSays("tls: certificate required"), "etcd's members ask for a client certificate: give --etcd-certfile and --etcd-keyfile"},
		{
			etcdSays("remote error: tls:"),
			"etcd's members refuse the certificate of --etcd-certfile: use a valid one that the CA of their --trusted-ca-file has signed",
		},
		{
			etcdSays("certificate signed by unknown authority"),
			"the members' certificates are not signed by a CA of --etcd-cafile: give it etcd's CA (kubeadm's is /etc/kubernetes/pki/etcd/ca.crt)",
		},
		{
			etcdSays("certificate has expired or is not yet valid"),
			"renew the certificates of etcd's members, and compare the clocks of their machines with this one's",
		},
		{
			etcdSays("certificate is valid for", "cannot validate certificate for", "certificate is not valid for any names"),
			"--etcd-servers must name hosts that the members' certificates have: use one of them, or give the members new certificates",
		},
		{etcdSays("the member speaks no TLS"), "the members speak no TLS: write http:// in --etcd-servers"},
		{etcdSays("the member speaks TLS"), "write https:// in --etcd-servers, and give --etcd-cafile the CA of the members' certificates"},
		{says("the port is taken by another process"), "--listen 127.0.0.1:0 selects a free port; `ss -ltnp` shows which process has this one"},
		{is(store.ErrLocked), "stop the server that uses it, or let it do this: --kubeconfig FILE"},
		{says("is in use by another process"), "stop the other server or node, or choose another --data-dir"},
		{says("is not empty and not one of Mortise's"), "choose another --data-dir, or an empty directory"},
		{says("which this release does not know"), "use the release that wrote it, or restore a backup: mortise store restore"},
		{says("another Mortise node with real containers runs"), "mortise up --node simulated, or stop the other node"},
		{says("a store is there"), "mv the directory store of --data-dir to another name, then restore again; the server must not run"},
		{says("read kubeconfig"), "give --kubeconfig FILE, or set KUBECONFIG: mortise up writes the file kubeconfig of its --data-dir at each start"},
		{says("certificate signed by unknown authority"), "the kubeconfig is of another cluster: use the file kubeconfig of the server's --data-dir"},
		{apierrors.IsUnauthorized, "the server does not know these credentials: use the file kubeconfig of its --data-dir, or make new ones"},
		{apierrors.IsForbidden, "`mortise kubectl auth can-i --list` shows what this user may do; an administrator may do it"},
		{is(store.ErrCorrupt), "restore a backup into an empty --data-dir: mortise store restore FILE"},
		{is(fs.ErrPermission), "run it as root, or choose a --data-dir and a --listen address that this user may use"},
		{is(syscall.ENOSPC), "`df -h` shows which file system is full"},
		{is(syscall.ECONNREFUSED), "start the server that the address names, or correct the address"},
		{is(context.DeadlineExceeded), "`mortise doctor` shows what does not answer"},
	}
}

// fail prints the line that says why a command failed and, where a row of the table fits, one that says what to do next. It returns exit
// code 1.
func fail(p Program, err error) int {
	fmt.Fprintf(p.Err, "mortise: %v\n", err)
	for _, a := range advices() {
		if a.fits(err) {
			fmt.Fprintf(p.Err, "mortise: what to do: %s\n", a.do)
			break
		}
	}
	return 1
}

// failStart is fail for a start, after which there is always something to do next.
func failStart(p Program, err error) int {
	code := fail(p, err)
	if !slices.ContainsFunc(advices(), func(a advice) bool { return a.fits(err) }) {
		fmt.Fprintln(p.Err, "mortise: what to do: `mortise doctor` examines this machine, and --log-level info shows more")
	}
	return code
}
