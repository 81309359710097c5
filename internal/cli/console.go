// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// runConsole prints a link that opens the console as the user of the kubeconfig.
func runConsole(ctx context.Context, p Program, args []string) int {
	f := pflag.NewFlagSet("console", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	kubeconfig := f.String("kubeconfig", "", "File of the server's kubeconfig. Default: $KUBECONFIG, then ~/.kube/config.")
	open := f.Bool("open", false, "Open the link in a browser, with xdg-open.")
	f.Usage = func() {
		fmt.Fprintf(f.Output(), `Usage: mortise console [flags]

Prints a link to the console of a running server, a web page. The link has a code that signs in as the user of the kubeconfig, once,
within five minutes. The server must serve the console: see --console of "mortise up".

%s`, f.FlagUsages())
	}
	if code, done := parse(p, f, "console", args); done {
		return code
	}
	if f.NArg() > 0 {
		f.Usage()
		return 2
	}
	link, err := consoleLink(ctx, *kubeconfig)
	if err != nil {
		return fail(p, err)
	}
	fmt.Fprintln(p.Out, link)
	if !*open {
		return 0
	}
	browser := exec.CommandContext(ctx, "xdg-open", link)
	browser.Stderr = p.Err
	if err := browser.Run(); err != nil {
		return fail(p, fmt.Errorf("open browser: %w", err))
	}
	return 0
}

// consoleLink asks the server for a one-time code, and returns the link with it. The code is in the fragment, which browsers send nowhere.
func consoleLink(ctx context.Context, kubeconfig string) (string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return "", fmt.Errorf("read kubeconfig: %w", err)
	}
	config.Timeout = 30 * time.Second
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return "", fmt.Errorf("make client: %w", err)
	}
	at, err := url.Parse(config.Host)
	if err != nil || at.Host == "" {
		return "", fmt.Errorf("the kubeconfig's server %q is no URL", config.Host)
	}
	page := at.JoinPath("console/")
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, page.JoinPath("api/codes").String(), http.NoBody)
	if err != nil {
		return "", fmt.Errorf("make request: %w", err)
	}
	r.Header.Set("X-Mortise-Console", "1")
	resp, err := client.Do(r)
	if err != nil {
		return "", fmt.Errorf("ask for a code: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return "", fmt.Errorf("ask for a code: %w", err)
	}
	if resp.StatusCode != http.StatusCreated {
		return "", refusedCode(resp.StatusCode, body)
	}
	var made struct {
		Code string `json:"code"`
	}
	if err := json.Unmarshal(body, &made); err != nil || made.Code == "" {
		return "", errors.New("ask for a code: the server's answer has none")
	}
	page.Fragment = "code=" + made.Code
	return page.String(), nil
}

// refusedCode says why the server makes no code.
func refusedCode(status int, body []byte) error {
	var why metav1.Status
	known := json.Unmarshal(body, &why) == nil && why.Kind == "Status"
	switch {
	case status == http.StatusNotFound || status == http.StatusForbidden && known && strings.Contains(why.Message, "cannot post path"):
		return errors.New("the server does not serve the console: start it with --console (the default if it listens on loopback)")
	case known:
		return fmt.Errorf("ask for a code: %s", why.Message)
	}
	return fmt.Errorf("ask for a code: the server answered %d %s", status, http.StatusText(status))
}
