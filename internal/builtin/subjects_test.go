// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/externalmetrics"
)

// subject is one follower in random histories. Each is asked by requests that no other one decides about.
type subject struct {
	name    string // in the feed
	objects []object
	look    func(m *member) string // what a server's answers show of the follower's state
	check   func(m *member)        // what holds at the end whatever a new server answers; nil: nothing else
}

// object is one that clients create with one of some bodies, change to another one, and delete.
type object struct {
	collection, name string
	bodies           []string
	status           []string // of each body; nil: clients do not write it
}

// code is the code of an answer.
func code(m *member, who, method, path, body string) int {
	return m.say(m.t.Context(), who, method, path, body).Code
}

// message is the message of an answer that is an error.
func message(m *member, method, path, body string) string {
	w := m.say(m.t.Context(), "root", method, path, body)
	var status metav1.Status
	if w.Code < 300 {
		return fmt.Sprint(w.Code)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil {
		return fmt.Sprint(w.Code, " ", w.Body)
	}
	return fmt.Sprint(w.Code, " ", status.Message)
}

// probe tries to create an object of a collection, and returns the message.
func probe(collection string) func(m *member) string {
	return func(m *member) string {
		return message(m, "POST", collection+"?dryRun=All", `{"metadata":{"name":"probe"}}`)
	}
}

// objects are those of a collection with the names and the bodies that body returns.
func objects(collection string, names []string, variants int, body func(name string, variant int) string) (os []object) {
	for _, name := range names {
		o := object{collection: collection, name: name}
		for v := range variants {
			o.bodies = append(o.bodies, body(name, v))
		}
		os = append(os, o)
	}
	return os
}

// subjects are all followers of the store.
func subjects() []subject {
	return []subject{
		definitionsSubject(), rbacSubject(), aggregationSubject(), reconcilerSubject(), flowControlSubject(), nodesSubject(),
		webhooksSubject("mutatingadmissionwebhook", "mutatingwebhookconfigurations", "secrets", "secrets"),
		webhooksSubject("validatingadmissionwebhook", "validatingwebhookconfigurations", "serviceaccounts", "namespaces"),
		validatingPolicySubject(), mutatingPolicySubject(), limitsSubject(), quotaSubject(), initializersSubject(),
		externalMetricsSubject(),
	}
}

func definitionsSubject() subject {
	plurals := []string{"boxes", "jars", "lids"}
	unserved := strings.Replace(crdVersion("v1", true), "true", "false", 1)
	names := []string{"boxes.ext.example.com", "jars.ext.example.com", "lids.ext.example.com"}
	all := objects(crdPath, names, 4, func(name string, v int) string {
		plural, _, _ := strings.Cut(name, ".")
		d := definition(plural, []string{crdVersion("v1", true), crdVersion("v1", true) + "," + crdVersion("v2", false), unserved,
			crdVersion("v1", true)}[v])
		if v == 3 { // the same kind as others
			d = strings.Replace(d, `"kind":"K`+plural+`"`, `"kind":"Same"`, 1)
		}
		return d
	})
	return subject{name: "customresourcedefinitions", objects: all, look: func(m *member) string {
		var codes []string
		for _, plural := range plurals {
			for _, version := range []string{"v1", "v2"} {
				codes = append(codes, fmt.Sprint(plural, version, ":", code(m, "root", "GET",
					"/apis/ext.example.com/"+version+"/namespaces/ns/"+plural, "")))
			}
		}
		return fmt.Sprint(codes, m.say(m.t.Context(), "root", "GET", "/apis/ext.example.com", "").Body)
	}}
}

func rbacSubject() subject {
	const rule = `{"apiGroups":[""],"resources":["RESOURCE"],"verbs":["list"]}`
	rules := func(v int) string {
		maps, secrets := strings.Replace(rule, "RESOURCE", "configmaps", 1), strings.Replace(rule, "RESOURCE", "secrets", 1)
		return "[" + []string{"", maps, secrets, maps + "," + secrets}[v] + "]"
	}
	role := func(name string, v int) string {
		return `{"metadata":{"name":"` + name + `"},"rules":` + rules(v) + `}`
	}
	binding := func(kind, role string) func(name string, v int) string {
		return func(name string, v int) string {
			subject := func(user string) string {
				return `{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"` + user + `"}`
			}
			subjects := []string{"", subject("jane"), subject("joe"), subject("joe") + "," + subject("jane")}[v]
			return `{"metadata":{"name":"` + name + `"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"` + kind + `","name":"` + role +
				`"},"subjects":[` + subjects + `]}`
		}
	}
	all := slices.Concat(
		objects(rbacPath+"clusterroles", []string{"r1", "r2"}, 4, role), objects(rbacPath+"namespaces/ns/roles", []string{"r1"}, 4, role),
		objects(rbacPath+"clusterrolebindings", []string{"b1"}, 4, binding("ClusterRole", "r1")),
		objects(rbacPath+"clusterrolebindings", []string{"b2"}, 4, binding("ClusterRole", "r2")),
		objects(rbacPath+"namespaces/ns/rolebindings", []string{"b1"}, 4, binding("ClusterRole", "r2")),
		objects(rbacPath+"namespaces/ns/rolebindings", []string{"b2"}, 4, binding("Role", "r1")),
	)
	return subject{name: "rbac", objects: all, look: func(m *member) string {
		var codes []int
		for _, user := range []string{"jane", "joe"} {
			for _, path := range []string{"ns/configmaps", "ns/secrets", "other/configmaps", "other/secrets"} {
				codes = append(codes, code(m, user, "GET", "/api/v1/namespaces/"+path, ""))
			}
		}
		return fmt.Sprint(codes)
	}}
}

const registrationsPath = "/apis/apiregistration.k8s.io/v1/apiservices"

func aggregationSubject() subject {
	registrations := objects(registrationsPath, []string{"v1.agg.example.com", "v2.agg.example.com"}, 4, func(name string, v int) string {
		version, group, _ := strings.Cut(name, ".")
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"group":%q,"version":%q,"groupPriorityMinimum":%d,"versionPriority":100,
			"insecureSkipTLSVerify":true,"service":{"namespace":"ns","name":%q}}}`, name, group, version, 100+v, []string{"one", "two"}[v%2])
	})
	services := objects(space+"services", []string{"one", "two"}, 2, func(name string, v int) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"ports":[{"port":%d}]}}`, name, 443+v)
	})
	return subject{name: "aggregation", objects: append(registrations, services...), look: func(m *member) string {
		var said []string
		for _, version := range []string{"v1", "v2"} {
			said = append(said, message(m, "GET", "/apis/agg.example.com/"+version+"/things", ""))
			var r apiregistrationv1.APIService
			w := m.say(m.t.Context(), "root", "GET", registrationsPath+"/"+version+".agg.example.com", "")
			if err := json.Unmarshal(w.Body.Bytes(), &r); err == nil && w.Code == http.StatusOK {
				for _, c := range r.Status.Conditions {
					said = append(said, fmt.Sprint(c.Type, c.Status, c.Reason))
				}
			}
		}
		return strings.Join(said, "\n")
	}}
}

// reconcilerSubject is seen in the conditions of flow schemas and in the registrations of definitions' versions.
func reconcilerSubject() subject {
	registrations := objects(registrationsPath, []string{"v1.ext.example.com", "v1.gone.example.com"}, 2, func(name string, v int) string {
		version, group, _ := strings.Cut(name, ".")
		return fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"kube-aggregator.kubernetes.io/automanaged":%q}},"spec":{"group":%q,"version":%q,
			"groupPriorityMinimum":%d,"versionPriority":100}}`, name, "true", group, version, 100+v)
	})
	return subject{name: "reconciler", objects: registrations, look: func(m *member) string {
		var said []string
		for _, s := range read[flowcontrolv1.FlowSchemaList](m, flowPath+"flowschemas").Items {
			for _, c := range s.Status.Conditions {
				said = append(said, fmt.Sprint(s.Name, " ", c.Type, c.Status, c.Reason, " ", c.Message))
			}
		}
		for _, r := range read[apiregistrationv1.APIServiceList](m, registrationsPath).Items {
			said = append(said, fmt.Sprint(r.Name, r.Labels, r.Spec.GroupPriorityMinimum))
		}
		return strings.Join(said, "\n")
	}, check: func(m *member) {
		for _, s := range read[flowcontrolv1.FlowSchemaList](m, flowPath+"flowschemas").Items {
			want, level := "False", s.Spec.PriorityLevelConfiguration.Name
			if code(m, "root", "GET", flowPath+"prioritylevelconfigurations/"+level, "") == http.StatusNotFound {
				want = "True"
			}
			if cs := s.Status.Conditions; len(cs) != 1 || string(cs[0].Status) != want || !strings.Contains(cs[0].Message, strconv.Quote(level)) {
				m.t.Errorf("flow schema %s with priority level %s has conditions %v, want Dangling %s", s.Name, level, cs, want)
			}
		}
		wanted := map[string]bool{}
		for _, d := range read[apiextensionsv1.CustomResourceDefinitionList](m, crdPath).Items {
			for _, v := range d.Spec.Versions {
				wanted[v.Name+"."+d.Spec.Group] = wanted[v.Name+"."+d.Spec.Group] || v.Served
			}
		}
		for _, r := range read[apiregistrationv1.APIServiceList](m, registrationsPath).Items {
			if r.Spec.Service == nil && !wanted[r.Name] {
				m.t.Errorf("there is a registration %s of no definition", r.Name)
			}
			delete(wanted, r.Name)
		}
		for name, served := range wanted {
			if served {
				m.t.Errorf("there is no registration %s of a definition that is served", name)
			}
		}
	}}
}

func flowControlSubject() subject {
	schemas := objects(flowPath+"flowschemas", []string{"mine", "ours"}, 4, func(name string, v int) string {
		s := flowSchema(name, []string{"jane", "joe"}[v%2])
		return strings.NewReplacer(`"exempt"`, []string{`"a"`, `"b"`}[v/2], `"matchingPrecedence":100`,
			fmt.Sprint(`"matchingPrecedence":`, 100+v)).Replace(s)
	})
	levels := objects(flowPath+"prioritylevelconfigurations", []string{"a", "b"}, 2, func(name string, v int) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":%d,
			"limitResponse":{"type":"Reject"}}}}`, name, 10+v)
	})
	return subject{name: "flowcontrol", objects: append(schemas, levels...), look: func(m *member) string {
		names := map[string]string{}
		for _, path := range []string{"flowschemas", "prioritylevelconfigurations"} {
			for _, item := range read[metav1.PartialObjectMetadataList](m, flowPath+path).Items {
				names[string(item.UID)] = item.Name
			}
		}
		var said []string
		for _, user := range []string{"jane", "joe"} {
			h := m.say(m.t.Context(), user, "GET", "/metrics", "").Header()
			said = append(said, names[h.Get("X-Kubernetes-Pf-Flowschema-Uid")]+" "+names[h.Get("X-Kubernetes-Pf-Prioritylevel-Uid")])
		}
		return strings.Join(said, ", ")
	}}
}

func nodesSubject() subject {
	const volumes = "/api/v1/persistentvolumes"
	node := []string{"n1", "n2"}
	bound := objects(attachments, []string{"a", "b"}, 2, func(name string, v int) string { return attachment(name, node[v]) })
	pods := objects(space+"pods", []string{"p1", "p2"}, 4, func(name string, v int) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"nodeName":%q,"containers":[{"name":"c","image":"i"}],"volumes":[
			{"name":"s","secret":{"secretName":%q}},{"name":"v","persistentVolumeClaim":{"claimName":"c1"}}]}}`,
			name, node[v%2], []string{"s1", "s2"}[v/2])
	})
	claimed := objects(volumes, []string{"v1"}, 2, func(name string, v int) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],
			"claimRef":{"namespace":"ns","name":%q},"csi":{"driver":"example.com","volumeHandle":"h",
			"nodePublishSecretRef":{"namespace":"ns","name":"s3"}}}}`, name, []string{"c1", "c2"}[v])
	})
	return subject{name: "nodes", objects: slices.Concat(bound, pods, claimed), look: func(m *member) string {
		var codes []int
		for _, n := range node {
			for _, path := range []string{attachments + "/a", attachments + "/b", space + "secrets/s1", space + "secrets/s2", space + "secrets/s3",
				space + "persistentvolumeclaims/c1", volumes + "/v1", space + "pods/p1"} {
				codes = append(codes, code(m, "system:node:"+n, "GET", path, ""))
			}
		}
		return fmt.Sprint(codes)
	}}
}

var exampleNames = regexp.MustCompile(`"[a-z0-9]+\.example\.com"`)

// webhooksSubject is about webhooks none of which answers: h1 for one resource, h2 for another one or the same. Validating webhooks are
// called at the same time, so that it is not certain which of two fails first.
func webhooksSubject(name, configurations string, resources ...string) subject {
	var all []object
	for i, resource := range resources {
		all = append(all, objects(admissionPath+configurations, []string{fmt.Sprint("h", i+1)}, 3, func(name string, v int) string {
			return hook([]string{resource, resource, "podtemplates"}[v], name, []string{"Fail", "Ignore", "Fail"}[v])
		})...)
	}
	return subject{name: "admission-" + name, objects: all, look: func(m *member) string {
		var said []string
		for _, resource := range resources {
			path := space + resource
			if resource == "namespaces" {
				path = "/api/v1/namespaces"
			}
			// the text reports whether the webhook was called, or is known not to answer
			text := probe(path)(m)
			said = append(said, text[:3]+exampleNames.FindString(text))
		}
		return fmt.Sprint(said)
	}}
}

func validatingPolicySubject() subject {
	policies := objects(admissionPath+"validatingadmissionpolicies", []string{"p", "q"}, 3, func(name string, v int) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{` + matchConfigMaps + `,"validations":[{"expression":"` +
			[]string{"false", "true", "size(object.metadata.name) > 9"}[v] + `"}]}}`
	})
	bindings := objects(admissionPath+"validatingadmissionpolicybindings", []string{"b", "c"}, 4, func(name string, v int) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"policyName":"` + []string{"p", "q"}[v%2] + `","validationActions":["` +
			[]string{"Deny", "Audit"}[v/2] + `"]}}`
	})
	return subject{name: "admission-validatingadmissionpolicy", objects: append(policies, bindings...), look: probe(space + "configmaps")}
}

func mutatingPolicySubject() subject {
	policies := objects(admissionPath+"mutatingadmissionpolicies", []string{"p", "q"}, 2, func(name string, v int) string {
		return strings.Replace(mutating(name, fmt.Sprint(name, v)), `"configmaps"`, `"endpoints"`, 1)
	})
	bindings := objects(admissionPath+"mutatingadmissionpolicybindings", []string{"b", "c"}, 2, func(name string, v int) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"policyName":"` + []string{"p", "q"}[v] + `"}}`
	})
	return subject{name: "admission-mutatingadmissionpolicy", objects: append(policies, bindings...), look: func(m *member) string {
		var made metav1.PartialObjectMetadata
		w := m.say(m.t.Context(), "root", "POST", space+"endpoints?dryRun=All", `{"metadata":{"name":"probe"}}`)
		if err := json.Unmarshal(w.Body.Bytes(), &made); err != nil {
			return err.Error()
		}
		return fmt.Sprint(w.Code, made.Labels)
	}}
}

func limitsSubject() subject {
	all := objects(space+"limitranges", []string{"l", "m"}, 3, func(name string, v int) string {
		return limits(name, []string{"1Gi", "4Gi", "10Gi"}[v])
	})
	return subject{name: "admission-limitranger", objects: all, look: func(m *member) string {
		var codes []int
		for _, size := range []string{"2Gi", "5Gi", "20Gi"} {
			codes = append(codes, code(m, "root", "POST", space+"persistentvolumeclaims?dryRun=All", claim(size)))
		}
		return fmt.Sprint(codes)
	}}
}

func quotaSubject() subject {
	hard := func(v int) string {
		return fmt.Sprintf(`"hard":{"count/leases.coordination.k8s.io":"%d"}`, []int{0, 5}[v])
	}
	all := objects(space+"resourcequotas", []string{"q1", "q2"}, 2, func(name string, v int) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{` + hard(v) + `}}`
	})
	for i := range all {
		for v := range all[i].bodies {
			all[i].status = append(all[i].status, `{"status":{`+hard(v)+`,"used":{"count/leases.coordination.k8s.io":"0"}}}`)
		}
	}
	return subject{name: "admission-resourcequota", objects: all, look: probe("/apis/coordination.k8s.io/v1/namespaces/ns/leases")}
}

func initializersSubject() subject {
	const version = v1alpha1.Group + "/v1alpha1"
	all := objects("/apis/"+version+"/"+v1alpha1.Resource, []string{"c", "d"}, 3, func(name string, v int) string {
		return `{"apiVersion":"` + version + `","kind":"` + v1alpha1.Kind + `","metadata":{"name":"` + name + `"},"initializers":[{"name":"` +
			[]string{"one", "two", "three"}[v] + "." + name + `.example.com","rules":[{"apiGroups":["apps"],"apiVersions":["v1"],
			"resources":["controllerrevisions"]}]}]}`
	})
	return subject{name: "admission-initializers", objects: all, look: func(m *member) string {
		var made metav1.PartialObjectMetadata
		w := m.say(m.t.Context(), "root", "POST", "/apis/apps/v1/namespaces/ns/controllerrevisions?dryRun=All",
			`{"metadata":{"name":"probe"},"revision":1}`)
		if err := json.Unmarshal(w.Body.Bytes(), &made); err != nil {
			return err.Error()
		}
		value, waits := made.Annotations[v1alpha1.InitializersAnnotation]
		if !waits {
			return fmt.Sprint(w.Code)
		}
		i, err := v1alpha1.DecodeInitializers(value)
		if err != nil {
			return err.Error()
		}
		var names []string
		for _, p := range i.Pending {
			names = append(names, p.Name)
		}
		return fmt.Sprint(w.Code, names)
	}}
}

// withExternalMetrics lets a server follow routes of external metrics.
func withExternalMetrics(t *testing.T, o *apiserver.Options) {
	t.Helper()
	kind, err := externalmetrics.Kind()
	if err != nil {
		t.Fatal(err)
	}
	o.Kinds, o.Aggregation.ExternalMetricsRoutes = append(o.Kinds, kind), true
}

const routesPath = "/apis/" + v1alpha1.Group + "/" + v1alpha1.Version + "/" + v1alpha1.ExternalMetricsRouteResource

// externalRoute is a route of a metric to a server that is not there.
func externalRoute(name, metric string) string {
	return `{"apiVersion":"` + v1alpha1.Group + "/" + v1alpha1.Version + `","kind":"` + v1alpha1.ExternalMetricsRouteKind +
		`","metadata":{"name":"` + name + `"},"spec":{"metrics":["` + metric + `"],"service":{"namespace":"ns","name":"` + name + `"}}}`
}

// externalMetric asks for a metric, NAMESPACE/NAME, and returns the code and the route that the refusal names.
func externalMetric(m *member, path string) string {
	w := m.say(m.t.Context(), "root", "GET", "/apis/external.metrics.k8s.io/v1beta1/namespaces/"+path, "")
	route, _, _ := strings.Cut(w.Header().Get("Warning"), ":")
	return fmt.Sprint(w.Code, " ", route)
}

// externalMetricsSubject has routes to servers that are not there: the refusal names the route.
func externalMetricsSubject() subject {
	all := objects(routesPath, []string{"r1", "r2"}, 3, func(name string, v int) string {
		return externalRoute(name, []string{"a*", "*", "b"}[v])
	})
	return subject{name: "externalmetrics", objects: all, look: func(m *member) string {
		return externalMetric(m, "ns/abc") + externalMetric(m, "ns/b") + externalMetric(m, "other/b")
	}}
}
