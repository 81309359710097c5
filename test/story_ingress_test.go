// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// ingressProgram names Traefik's binary, a static one, for TestStory. Without it, this test's program stands in for Traefik.
const ingressProgram = "MORTISE_TEST_TRAEFIK"

// throughIngress deploys examples/ingress without what it has for the Gateway API: an ingress controller behind a Service of type
// LoadBalancer leads a client outside of the machine to a page, by the name of its host.
func throughIngress(t *testing.T, n *realNode) {
	program, runs := os.Getenv(ingressProgram), ""
	if program == "" {
		self, err := os.Executable()
		if err == nil {
			program, err = filepath.EvalSymlinks(self)
		}
		try(t, err)
		runs = fmt.Sprintf("\n        env: [{name: %s, value: pod}, {name: %s, value: ingress}]", aloneTest, podRuns)
	}
	var manifest []string
	for _, file := range []string{"traefik.yaml", "web.yaml"} {
		text, err := os.ReadFile(filepath.Join("../examples/ingress", file))
		try(t, err)
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			if !strings.Contains(document, "\napiVersion: gateway.") && !strings.HasPrefix(document, "apiVersion: gateway.") {
				manifest = append(manifest, document)
			}
		}
	}
	all := strings.Join(manifest, "\n---\n")
	for _, arg := range []string{"providers.kubernetesgateway\n", "providers.kubernetesgateway.statusaddress.service.name=traefik\n",
		"providers.kubernetesgateway.statusaddress.service.namespace=traefik\n"} {
		all = strings.Replace(all, "        - --"+arg, "", 1)
	}
	all = strings.Replace(all, "        image: docker.io/library/traefik:v3.7.13\n", "        image: IMAGE\n        command: [/program]"+runs+
		"\n        volumeMounts: [{name: program, mountPath: /program, readOnly: true}]\n", 1)
	all = strings.Replace(all, "      serviceAccountName: traefik\n", "      serviceAccountName: traefik\n      terminationGracePeriodSeconds: 1\n"+
		"      volumes: [{name: program, hostPath: {path: "+program+"}}]\n", 1)
	n.apply(t, all)
	defer n.kubectl("delete", "namespace/traefik", "deployment/page", "ingress/page", "ingressclass/traefik", "--cascade=foreground",
		"--timeout=60s")
	n.kubectl("-n", "traefik", "rollout", "status", "deployment/traefik", "--timeout=100s")
	n.kubectl("rollout", "status", "deployment/page", "--timeout=100s")
	n.kubectl("wait", "ingress/page", "--for=jsonpath={.status.loadBalancer.ingress[0].ip}="+nodeAddress, "--timeout=100s")
	at := net.JoinHostPort(nodeAddress, "80")
	n.answersOutside(t, at)
	ask := func(host string) (status int, text string) {
		t.Helper()
		try(t, n.outside.Try(func() (err error) {
			status, text, err = getAs(at, host)
			return err
		}))
		return status, text
	}
	if status, text := ask("web.example.com"); status != http.StatusOK || !strings.Contains(text, "Welcome to Mortise!") {
		t.Errorf("the page's host answers %d: %s", status, text)
	}
	if status, text := ask("other.example.com"); status != http.StatusNotFound {
		t.Errorf("another host answers %d: %s", status, text)
	}
}

// getAs asks an address for the page of a host, from the network that the thread is in.
func getAs(address, host string) (status int, text string, err error) {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return 0, "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, "", err
	}
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host); err != nil {
		return 0, "", err
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

// standIn is an ingress controller: it sends requests on by the host names of Ingresses, and publishes the addresses of its own Service.
type standIn struct {
	client  kubernetes.Interface
	factory informers.SharedInformerFactory
}

// ingressInPod is the stand-in, in a pod.
func ingressInPod() error {
	ctx := context.Background()
	own, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		return err
	}
	s := &standIn{client, informers.NewSharedInformerFactory(client, 0)}
	changed := make(chan struct{}, 1)
	for _, i := range []cache.SharedIndexInformer{
		s.factory.Networking().V1().Ingresses().Informer(), s.factory.Core().V1().Services().Informer(),
		s.factory.Discovery().V1().EndpointSlices().Informer(),
	} {
		tell := func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { tell() }, UpdateFunc: func(any, any) { tell() }, DeleteFunc: func(any) { tell() },
		}); err != nil {
			return err
		}
	}
	s.factory.Start(ctx.Done())
	s.factory.WaitForCacheSync(ctx.Done())
	failed := make(chan error, 2)
	pings := http.NewServeMux()
	pings.HandleFunc("/ping", func(http.ResponseWriter, *http.Request) {})
	go func() { failed <- http.ListenAndServe(":8080", pings) }()
	go func() { failed <- http.ListenAndServe(":80", s) }()
	for {
		select {
		case <-changed:
			if err := s.publish(ctx); err != nil {
				fmt.Println("publish:", err)
			}
		case err := <-failed:
			return err
		}
	}
}

// publish writes the addresses of the Service into the Ingresses' status.
func (s *standIn) publish(ctx context.Context) error {
	service, err := s.factory.Core().V1().Services().Lister().Services("traefik").Get("traefik")
	if err != nil {
		return err
	}
	all, err := s.factory.Networking().V1().Ingresses().Lister().List(labels.Everything())
	if err != nil {
		return err
	}
	var addresses []networkingv1.IngressLoadBalancerIngress
	for _, i := range service.Status.LoadBalancer.Ingress {
		addresses = append(addresses, networkingv1.IngressLoadBalancerIngress{IP: i.IP})
	}
	for _, i := range all {
		if i.Spec.IngressClassName == nil || *i.Spec.IngressClassName != "traefik" ||
			equality.Semantic.DeepEqual(i.Status.LoadBalancer.Ingress, addresses) {
			continue
		}
		i = i.DeepCopy()
		i.Status.LoadBalancer.Ingress = addresses
		if _, err := s.client.NetworkingV1().Ingresses(i.Namespace).UpdateStatus(ctx, i, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// ServeHTTP sends a request on to an endpoint of the Service that the host's Ingress names.
func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	all, err := s.factory.Networking().V1().Ingresses().Lister().List(labels.Everything())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	for _, i := range all {
		for _, rule := range i.Spec.Rules {
			if rule.Host != r.Host || rule.HTTP == nil {
				continue
			}
			to := s.endpoint(i.Namespace, rule.HTTP.Paths[0].Backend.Service)
			if to == "" {
				http.Error(w, "no endpoint", http.StatusServiceUnavailable)
				return
			}
			httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: to}).ServeHTTP(w, r)
			return
		}
	}
	http.NotFound(w, r)
}

// endpoint returns the address of a ready endpoint of a Service's port; empty: there is none.
func (s *standIn) endpoint(namespace string, b *networkingv1.IngressServiceBackend) string {
	of := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: b.Name})
	all, err := s.factory.Discovery().V1().EndpointSlices().Lister().EndpointSlices(namespace).List(of)
	if err != nil {
		return ""
	}
	for _, slice := range all {
		port := slices.IndexFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool {
			return p.Name != nil && *p.Name == b.Port.Name && (p.Protocol == nil || *p.Protocol == corev1.ProtocolTCP)
		})
		for _, e := range slice.Endpoints {
			if port >= 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				return net.JoinHostPort(e.Addresses[0], fmt.Sprint(*slice.Ports[port].Port))
			}
		}
	}
	return ""
}
