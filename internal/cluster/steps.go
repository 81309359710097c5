// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/modes"
	"github.com/mortise-dev/mortise/internal/apiserver/encryption"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/datadir"
	"github.com/mortise-dev/mortise/internal/lifecycle"
	"github.com/mortise-dev/mortise/internal/node"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// step is one line of the table.
type step = lifecycle.Step[*assembly]

// steps returns the steps in the order of a start. Steps that may refuse the settings come before those that write.
func steps() []step {
	var all []step
	for _, some := range [][]step{checks(), openings(), servers(), objects(), serves(), clients()} {
		all = append(all, some...)
	}
	return all
}

// readerSteps returns the steps of an API server that only reads.
func readerSteps() []step {
	found := []step{{Name: "find the objects of every cluster", Start: func(_ context.Context, a *assembly) error {
		close(a.bootstrapped)
		return nil
	}}}
	return slices.Concat(checks(), openings(), servers(), found, serves())
}

// checks read the settings' files, and refuse invalid ones.
func checks() []step {
	return []step{
		{Name: "check the selection", Start: func(_ context.Context, a *assembly) error {
			_, err := controllers.Select(a.settings.controllers, a.settings.Controllers)
			return err
		}},
		{Name: "make admission", Start: func(_ context.Context, a *assembly) (err error) {
			a.admission, err = makeAdmission(a.settings)
			return err
		}},
		{Name: "make initializers", Start: func(_ context.Context, a *assembly) (err error) {
			a.initializing, err = makeInitializers(a.settings)
			return err
		}},
		{Name: "make external-metrics routes", Start: func(_ context.Context, a *assembly) (err error) {
			a.externalMetrics, err = externalMetricsKinds(a.settings)
			return err
		}},
		{Name: "make extensions of the console", Start: func(_ context.Context, a *assembly) (err error) {
			a.consoleKinds, err = consoleKinds(a.settings)
			return err
		}},
		{Name: "read the ways of egress", Start: func(_ context.Context, a *assembly) (err error) {
			a.egress, err = egress.Load(a.settings.APIServer.Egress.ConfigFile, a.ledger)
			if a.settings.local != nil {
				a.egress = a.egress.After(a.settings.local.find)
			}
			return err
		}},
		{
			Name: "read authentication",
			Start: func(ctx context.Context, a *assembly) (err error) {
				o := &a.settings.APIServer
				a.authentication, err = readAuthentication(ctx, &o.Authentication, o.Authorization.Modes, a.ledger, a.egress)
				return err
			},
			Stop: func(a *assembly) error { a.authentication.close(); return nil },
		},
		{Name: "check audit", Start: func(_ context.Context, a *assembly) error { return checkAudit(&a.settings.APIServer.Audit) }},
		{Name: "read authorization", Start: func(_ context.Context, a *assembly) (err error) {
			a.modes, err = readAuthorization(a.settings.APIServer.Authorization)
			return err
		}},
		{Name: "read encryption", Start: func(_ context.Context, a *assembly) (err error) {
			a.encryptionConfig, err = readEncryption(&a.settings.APIServer.Encryption)
			return err
		}},
		{Name: "read the front proxy's certificate", Start: func(_ context.Context, a *assembly) (err error) {
			a.frontProxy, err = readFrontProxyClient(&a.settings.APIServer.Aggregation)
			return err
		}},
		{Name: "read the serving certificates", Start: func(_ context.Context, a *assembly) (err error) {
			a.servingFiles, err = readServing(&a.settings.APIServer.Serving)
			return err
		}},
		{Name: "read the nodes' authorities", Start: func(_ context.Context, a *assembly) (err error) {
			a.nodeCAs, err = readNodeAuthorities(a.settings.APIServer.Kubelets.CAFile)
			return err
		}},
		{Name: "read the ways to other servers", Start: func(_ context.Context, a *assembly) (err error) {
			a.peering, err = readPeering(&a.settings.APIServer.Aggregation.Peers)
			return err
		}},
		{Name: "read the scheduler's configuration", Start: func(ctx context.Context, a *assembly) (err error) {
			a.scheduling, err = readScheduling(ctx, a.settings)
			return err
		}},
		{Name: "plan the nodes", Start: func(ctx context.Context, a *assembly) (err error) {
			a.node, err = node.Check(ctx, a.settings.nodeOptions(a.ledger))
			return err
		}},
	}
}

// openings acquire what only this process may use: a port, the data directory, the store.
func openings() []step {
	return []step{
		{
			Name: "claim the machine",
			Start: func(ctx context.Context, a *assembly) (err error) {
				a.claim, err = a.node.Claim(ctx)
				return err
			},
			Stop: func(a *assembly) error { return a.claim.Close() },
		},
		{
			Name: "listen",
			Start: func(ctx context.Context, a *assembly) (err error) {
				a.listener, err = listen(ctx, a.settings)
				return err
			},
			Stop: func(a *assembly) error {
				if err := a.listener.Close(); !errors.Is(err, net.ErrClosed) { // the API server closes it
					return err
				}
				return nil
			},
		},
		{
			Name: "listen for pods",
			Start: func(ctx context.Context, a *assembly) (err error) {
				a.forPods, err = openPodAccess(ctx, a.settings, a.node, a.listener)
				return err
			},
			Stop: func(a *assembly) error { return a.forPods.close() },
		},
		{
			Name: "open the data directory",
			Start: func(_ context.Context, a *assembly) (err error) {
				a.dir, err = datadir.Open(a.settings.DataDir)
				return err
			},
			Stop: func(a *assembly) error { return a.dir.Close() },
		},
		{Name: "load certificates", Start: func(_ context.Context, a *assembly) (err error) {
			if a.material, err = loadCertificates(a.settings, a.forPods.texts()); err != nil {
				return err
			}
			if a.settings.origin != nil {
				return nil // they are complete
			}
			a.material.Certificates, err = a.servingFiles.complete(a.settings, a.material)
			return err
		}},
		{Name: "create the administrator's credentials", Start: func(_ context.Context, a *assembly) (err error) {
			a.access, err = makeAccess(a.settings, a.listener, a.material)
			return err
		}},
		{
			Name: "start encryption",
			Start: func(ctx context.Context, a *assembly) (err error) {
				a.encryption, err = startEncryption(ctx, a.encryptionConfig, encryption.Options{
					Reload: a.settings.APIServer.Encryption.Reload, Ledger: a.ledger, Log: a.settings.Logger.With("part", "encryption"),
					ServerID: a.access.url,
				})
				return err
			},
			Stop: func(a *assembly) error { a.encryption.close(); return nil },
		},
		{
			Name: "open the store",
			Start: func(ctx context.Context, a *assembly) (err error) {
				a.store, err = openStore(ctx, a.settings, a.encryption)
				return err
			},
			Stop: func(a *assembly) error {
				if err := a.store.Close(); err != nil && !errors.Is(err, store.ErrClosed) {
					return fmt.Errorf("close store: %w", err)
				}
				return nil
			},
		},
		{Name: "wait for the encryption's plug-ins", Start: func(ctx context.Context, a *assembly) error {
			return a.encryption.await(ctx, func() []*resource.Descriptor { return builtInKinds(a.settings) })
		}},
	}
}

// servers create the API server and its dependencies.
func servers() []step {
	return []step{
		{
			Name: "run the auditor",
			Start: func(ctx context.Context, a *assembly) (err error) {
				log := a.settings.Logger.With("part", "audit")
				a.auditing = a.process.Group()
				if a.auditor, err = makeAuditor(&a.settings.APIServer.Audit, log, a.ledger, a.egress); a.auditor != nil {
					a.auditing.Run(ctx, "audit", a.auditor.Run)
				}
				return err
			},
			Stop: func(a *assembly) error { a.auditing.Stop(); return nil },
		},
		{Name: "create the authorizers", Start: func(_ context.Context, a *assembly) error {
			id, err := serverID()
			if err != nil {
				return err
			}
			a.authorization, err = makeAuthorization(a.modes, modes.Options{
				Ledger: a.ledger, Egress: a.egress, Log: a.settings.Logger.With("part", "authorization"), ServerID: id,
			})
			return err
		}},
		{Name: "make metrics", Start: func(_ context.Context, a *assembly) (err error) {
			a.observation, err = observe(a.settings, a.node)
			return err
		}},
		{
			Name: "serve what nodes use",
			Start: func(_ context.Context, a *assembly) error {
				a.metrics = makeMetricsAPI(a)
				return nil
			},
			Stop: func(a *assembly) error { a.metrics.Close(); return nil },
		},
		{
			Name: "create the API server",
			Start: func(_ context.Context, a *assembly) (err error) {
				a.background, a.bootstrapped = a.process.Group(), make(chan struct{})
				a.server, err = makeServer(a)
				a.observation.usage = makePodUsage(a)
				return err
			},
			Stop: func(a *assembly) error {
				a.background.Stop()
				a.server.Close()
				return nil
			},
		},
		{Name: "create the console", Start: func(_ context.Context, a *assembly) (err error) {
			a.console, err = makeConsole(a)
			return err
		}},
	}
}

// objects make and restore what the API server writes itself.
func objects() []step {
	return []step{
		{Name: "create the objects of every cluster", Start: makeObjects},
		{Name: "take back former registrations", Start: func(ctx context.Context, a *assembly) error {
			return dropRegistrations(ctx, a.server)
		}},
		{Name: "take back former nodes", Start: func(ctx context.Context, a *assembly) error {
			if a.node.Mode == node.Simulated || a.settings.engine.Shared {
				return nil
			}
			return dropSimulatedNodes(ctx, a.server, a.settings.Logger)
		}},
		{Name: "follow files", Start: func(ctx context.Context, a *assembly) error {
			log := a.settings.Logger
			a.background.Run(ctx, "authorization", a.authorization.chain.Run)
			a.encryption.follow(ctx, a.background)
			followFrontProxyClient(ctx, a.frontProxy, a.background, log, a.server.Aggregator().Rotated)
			followServing(ctx, a.material.Certificates, a.background, log)
			a.settings.signing.follow(ctx, a.background, log)
			return nil
		}},
	}
}

// serves start the API server.
func serves() []step {
	return []step{
		{Name: "serve", Start: func(ctx context.Context, a *assembly) error {
			if a.console != nil {
				a.background.Go(ctx, a.console.Run)
			}
			a.background.Run(ctx, "API server", func(ctx context.Context) error {
				return a.server.Serve(ctx, append(a.forPods.Listeners, a.listener)...)
			})
			return nil
		}},
		{Name: "serve etcd's protocol", Start: func(ctx context.Context, a *assembly) error { return a.serveEtcd(ctx) }},
	}
}

// clients start the clients of the API server.
func clients() []step {
	return []step{
		{
			Name: "group the clients",
			Start: func(_ context.Context, a *assembly) error {
				a.clients = a.process.Dependents()
				return nil
			},
			Stop: func(a *assembly) error {
				a.server.Leave() // load balancers stop sending requests, and handlers stop waiting for the clients
				a.clients.Stop()
				return nil
			},
		},
		{Name: "run controllers", Start: func(ctx context.Context, a *assembly) (err error) {
			layout := a.settings.layout(a.material, a.advertised(), tokens(a.server, a.authentication), a.servers())
			a.settled, err = a.settings.runControllers(ctx, a.self(), layout, a.observation, a.clients)
			return err
		}},
		{Name: "run the scheduler", Start: func(ctx context.Context, a *assembly) error {
			a.settings.runScheduler(ctx, a.self(), a.scheduling, a.observation, a.ledger, a.clients)
			return nil
		}},
		{Name: "connect the nodes", Start: func(ctx context.Context, a *assembly) (err error) {
			a.connection, err = a.settings.connectNodes(ctx, a.node, a.self(), a.material, a.listener, &a.forPods)
			return err
		}},
		{Name: "create the Service of the cluster DNS", Start: func(ctx context.Context, a *assembly) error {
			a.settings.ensureDNS(ctx, a.node, a.self())
			return nil
		}},
		{Name: "run nodes", Start: func(ctx context.Context, a *assembly) error {
			return a.node.Run(ctx, a.connection, a.clients)
		}},
		{Name: "write the kubeconfig", Start: func(_ context.Context, a *assembly) error {
			if a.settings.KubeconfigFile == "" {
				return nil
			}
			return writeKubeconfig(a.settings.KubeconfigFile, a.access.kubeconfig())
		}},
		{Name: "follow the other servers", Start: func(ctx context.Context, a *assembly) error {
			a.followServers(ctx)
			a.followPeers(ctx)
			return nil
		}},
	}
}
