// Command applications-api serves the group apps.cozystack.io the way Cozystack's aggregated API does, for tests: admission
// runs inside it, dry runs are carried out, managedFields are dropped, defaults are filled in, unknown fields of a
// spec are kept. Objects are kept in memory.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"sync"
	"syscall"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/admission"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

var version = schema.GroupVersion{Group: "apps.cozystack.io", Version: "v1alpha1"}

// Application is one of any of the kinds.
type Application struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              *apiextensions.JSON `json:"spec,omitempty"`
	Status            Status              `json:"status,omitempty"`
}

// Status is empty: nothing is ever deployed.
type Status struct{}

// List is a list of them.
type List struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Application `json:"items"`
}

func (a *Application) copy() *Application {
	out := &Application{TypeMeta: a.TypeMeta, ObjectMeta: *a.ObjectMeta.DeepCopy()}
	if a.Spec != nil {
		out.Spec = a.Spec.DeepCopy()
	}
	return out
}

// DeepCopyObject is runtime.Object's.
func (a *Application) DeepCopyObject() runtime.Object { return a.copy() }

// DeepCopyObject is runtime.Object's.
func (l *List) DeepCopyObject() runtime.Object {
	out := &List{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy(), Items: make([]Application, 0, len(l.Items))}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].copy())
	}
	return out
}

// Kind is what the file of --kinds holds one of each.
type Kind struct {
	Kind     string         `json:"kind"`
	Plural   string         `json:"plural"`
	Defaults map[string]any `json:"defaults"`
}

// One sequence for all kinds, as etcd has.
type store struct {
	sync.Mutex
	revision int64
}

type storage struct {
	kind     Kind
	store    *store
	objects  map[string]*Application
	watchers *watch.Broadcaster
	rest.TableConvertor
}

func newStorage(kind Kind, shared *store) *storage {
	resource := schema.GroupResource{Group: version.Group, Resource: kind.Plural}
	return &storage{
		kind: kind, store: shared, objects: map[string]*Application{},
		watchers:       watch.NewLongQueueBroadcaster(1000, watch.WaitIfChannelFull),
		TableConvertor: rest.NewDefaultTableConvertor(resource),
	}
}

func (s *storage) New() runtime.Object     { return s.stamped(&Application{}) }
func (s *storage) NewList() runtime.Object { return &List{} }
func (s *storage) Destroy()                {}
func (s *storage) NamespaceScoped() bool   { return true }
func (s *storage) GetSingularName() string { return "" }

// GroupVersionKind tells the kinds apart, which all have one Go type.
func (s *storage) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return version.WithKind(s.kind.Kind)
}

func (s *storage) stamped(a *Application) *Application {
	a.TypeMeta = metav1.TypeMeta{APIVersion: version.String(), Kind: s.kind.Kind}
	return a
}

func (s *storage) resource() schema.GroupResource {
	return schema.GroupResource{Group: version.Group, Resource: s.kind.Plural}
}

func key(ctx context.Context, name string) string {
	return request.NamespaceValue(ctx) + "/" + name
}

// keep stores what Cozystack stores of it; the lock is held.
func (s *storage) keep(key string, a *Application, event watch.EventType) (*Application, error) {
	spec := map[string]any{}
	if a.Spec != nil && len(a.Spec.Raw) > 0 {
		if err := json.Unmarshal(a.Spec.Raw, &spec); err != nil {
			return nil, errors.NewBadRequest("spec: " + err.Error())
		}
	}
	fill(spec, s.kind.Defaults)
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	kept := s.stamped(a.copy())
	kept.Spec = &apiextensions.JSON{Raw: raw}
	kept.ManagedFields = nil
	old := s.objects[key]
	if old != nil && string(old.Spec.Raw) == string(raw) && sameMetadata(old, kept) {
		return old.copy(), nil
	}
	s.store.revision++
	kept.ResourceVersion = strconv.FormatInt(s.store.revision, 10)
	s.objects[key] = kept
	return kept.copy(), s.watchers.Action(event, kept.copy())
}

// sameMetadata: nothing is written for what changes nothing, as etcd3 storage does.
func sameMetadata(old, new *Application) bool {
	left, right := old.ObjectMeta.DeepCopy(), new.ObjectMeta.DeepCopy()
	left.ResourceVersion, right.ResourceVersion = "", ""
	return equality.Semantic.DeepEqual(left, right)
}

func fill(values, defaults map[string]any) {
	for key, value := range defaults {
		there, has := values[key]
		if !has {
			values[key] = value
			continue
		}
		if there, is := there.(map[string]any); is {
			if value, is := value.(map[string]any); is {
				fill(there, value)
			}
		}
	}
}

func (s *storage) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	a, is := obj.(*Application)
	if !is {
		return nil, errors.NewBadRequest(fmt.Sprintf("not an application: %T", obj))
	}
	rest.FillObjectMetaSystemFields(a)
	if a.Name == "" {
		return nil, errors.NewBadRequest("metadata.name: required")
	}
	a.Namespace = request.NamespaceValue(ctx)
	if validate != nil {
		if err := validate(ctx, a.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	s.store.Lock()
	defer s.store.Unlock()
	if s.objects[key(ctx, a.Name)] != nil {
		return nil, errors.NewAlreadyExists(s.resource(), a.Name)
	}
	return s.keep(key(ctx, a.Name), a, watch.Added)
}

func (s *storage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	s.store.Lock()
	defer s.store.Unlock()
	if a := s.objects[key(ctx, name)]; a != nil {
		return a.copy(), nil
	}
	return nil, errors.NewNotFound(s.resource(), name)
}

func (s *storage) List(ctx context.Context, listOptions *metainternal.ListOptions) (runtime.Object, error) {
	s.store.Lock()
	defer s.store.Unlock()
	out := &List{TypeMeta: metav1.TypeMeta{APIVersion: version.String(), Kind: s.kind.Kind + "List"}, Items: []Application{}}
	out.ResourceVersion = strconv.FormatInt(s.store.revision, 10)
	for _, a := range s.objects {
		if matches(ctx, listOptions, a) {
			out.Items = append(out.Items, *a.copy())
		}
	}
	sort.Slice(out.Items, func(i, j int) bool {
		return out.Items[i].Namespace+"/"+out.Items[i].Name < out.Items[j].Namespace+"/"+out.Items[j].Name
	})
	return out, nil
}

func matches(ctx context.Context, listOptions *metainternal.ListOptions, a *Application) bool {
	namespace := request.NamespaceValue(ctx)
	if namespace != "" && namespace != a.Namespace {
		return false
	}
	if listOptions == nil {
		return true
	}
	if listOptions.LabelSelector != nil && !listOptions.LabelSelector.Matches(labels.Set(a.Labels)) {
		return false
	}
	selector := listOptions.FieldSelector
	return selector == nil || selector.Matches(fields.Set{"metadata.name": a.Name, "metadata.namespace": a.Namespace})
}

func (s *storage) Watch(ctx context.Context, listOptions *metainternal.ListOptions) (watch.Interface, error) {
	s.store.Lock()
	defer s.store.Unlock()
	var before []watch.Event
	if listOptions == nil || listOptions.ResourceVersion == "" || listOptions.ResourceVersion == "0" {
		for _, a := range s.objects {
			before = append(before, watch.Event{Type: watch.Added, Object: a.copy()})
		}
	}
	watcher, err := s.watchers.WatchWithPrefix(before)
	if err != nil {
		return nil, err
	}
	return watch.Filter(watcher, func(event watch.Event) (watch.Event, bool) {
		a, is := event.Object.(*Application)
		return event, is && matches(ctx, listOptions, a)
	}), nil
}

func (s *storage) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, onCreate rest.ValidateObjectFunc, onUpdate rest.ValidateObjectUpdateFunc, forceAllowCreate bool, _ *metav1.UpdateOptions) (runtime.Object, bool, error) {
	s.store.Lock()
	old := s.objects[key(ctx, name)]
	if old != nil {
		old = old.copy()
	}
	s.store.Unlock()
	if old == nil {
		if !forceAllowCreate {
			return nil, false, errors.NewNotFound(s.resource(), name)
		}
		made, err := info.UpdatedObject(ctx, s.New())
		if err != nil {
			return nil, false, err
		}
		created, err := s.Create(ctx, made, onCreate, nil)
		return created, true, err
	}
	updated, err := info.UpdatedObject(ctx, old.copy())
	if err != nil {
		return nil, false, err
	}
	a, is := updated.(*Application)
	if !is {
		return nil, false, errors.NewBadRequest(fmt.Sprintf("not an application: %T", updated))
	}
	if a.ResourceVersion != "" && a.ResourceVersion != old.ResourceVersion {
		return nil, false, errors.NewConflict(s.resource(), name, fmt.Errorf("it is at %s", old.ResourceVersion))
	}
	if onUpdate != nil {
		if err := onUpdate(ctx, a.DeepCopyObject(), old); err != nil {
			return nil, false, err
		}
	}
	a.UID, a.CreationTimestamp, a.Namespace = old.UID, old.CreationTimestamp, old.Namespace
	s.store.Lock()
	defer s.store.Unlock()
	if now := s.objects[key(ctx, name)]; now == nil || now.ResourceVersion != old.ResourceVersion {
		return nil, false, errors.NewConflict(s.resource(), name, fmt.Errorf("it changed meanwhile"))
	}
	kept, err := s.keep(key(ctx, name), a, watch.Modified)
	return kept, false, err
}

func (s *storage) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, _ *metav1.DeleteOptions) (runtime.Object, bool, error) {
	found, err := s.Get(ctx, name, nil)
	if err != nil {
		return nil, false, err
	}
	if validate != nil {
		if err := validate(ctx, found); err != nil {
			return nil, false, err
		}
	}
	s.store.Lock()
	defer s.store.Unlock()
	delete(s.objects, key(ctx, name))
	s.store.revision++
	gone := found.(*Application)
	gone.ResourceVersion = strconv.FormatInt(s.store.revision, 10)
	return gone, true, s.watchers.Action(watch.Deleted, gone.copy())
}

// resolver finds webhooks by the EndpointSlices of their Services: there is no cluster DNS.
type resolver struct{ client kubernetes.Interface }

// Initialize is admission.PluginInitializer's.
func (r *resolver) Initialize(plugin admission.Interface) {
	if webhook, is := plugin.(interface {
		SetServiceResolver(webhookutil.ServiceResolver)
	}); is {
		webhook.SetServiceResolver(r)
	}
}

// ResolveEndpoint is webhookutil.ServiceResolver's. Any port of the Service will do: ours have one that is asked for.
func (r *resolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	service, err := r.client.CoreV1().Services(namespace).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	portName := ""
	for _, p := range service.Spec.Ports {
		if p.Port == port {
			portName = p.Name
		}
	}
	slices, err := r.client.DiscoveryV1().EndpointSlices(namespace).List(context.Background(), metav1.ListOptions{
		LabelSelector: "kubernetes.io/service-name=" + name,
	})
	if err != nil {
		return nil, err
	}
	for _, slice := range slices.Items {
		for _, p := range slice.Ports {
			if p.Name != nil && *p.Name == portName && p.Port != nil {
				for _, endpoint := range slice.Endpoints {
					// One that is gone refuses the connection; the newest is the one that is there.
					host := net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*p.Port)))
					if probe, err := net.DialTimeout("tcp", host, time.Second); err == nil {
						probe.Close()
						return &url.URL{Scheme: "https", Host: host}, nil
					}
				}
			}
		}
	}
	return nil, errors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
}

// definitions says of every type that it is an object of which nothing is known: fields are owned one by one.
func definitions(kinds []Kind) common.GetOpenAPIDefinitions {
	open := func(extensions spec.Extensions) common.OpenAPIDefinition {
		extensions.Add("x-kubernetes-preserve-unknown-fields", true)
		return common.OpenAPIDefinition{Schema: spec.Schema{
			SchemaProps:      spec.SchemaProps{Type: []string{"object"}},
			VendorExtensible: spec.VendorExtensible{Extensions: extensions},
		}}
	}
	return func(common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		all := map[string]common.OpenAPIDefinition{}
		for _, name := range []string{
			"APIGroup", "APIGroupList", "APIResourceList", "APIVersions", "DeleteOptions", "ListMeta", "ObjectMeta", "Patch",
			"Status", "Table", "WatchEvent", "PartialObjectMetadata", "PartialObjectMetadataList",
		} {
			all["k8s.io/apimachinery/pkg/apis/meta/v1."+name] = open(spec.Extensions{})
			all["io.k8s.apimachinery.pkg.apis.meta.v1."+name] = open(spec.Extensions{})
		}
		all["k8s.io/apimachinery/pkg/version.Info"] = open(spec.Extensions{})
		all["io.k8s.apimachinery.pkg.version.Info"] = open(spec.Extensions{})
		gvks := func(suffix string) spec.Extensions {
			var out []any
			for _, kind := range kinds {
				out = append(out, map[string]any{"group": version.Group, "version": version.Version, "kind": kind.Kind + suffix})
			}
			return spec.Extensions{"x-kubernetes-group-version-kind": out}
		}
		all["main.Application"] = open(gvks(""))
		all["main.List"] = open(gvks("List"))
		return all
	}
}

func main() {
	recommended := options.NewRecommendedOptions("", nil)
	recommended.Etcd = nil
	recommended.Features.EnablePriorityAndFairness = false
	var kubeconfig, certificate, privateKey, file string
	var port int
	flag.StringVar(&kubeconfig, "kubeconfig", "", "of the API server that this one is aggregated into")
	flag.StringVar(&certificate, "tls-cert-file", "", "serving certificate")
	flag.StringVar(&privateKey, "tls-private-key-file", "", "its key")
	flag.StringVar(&file, "kinds", "", "JSON file: a list of kind, plural, defaults")
	flag.IntVar(&port, "port", 0, "port to listen on")
	flag.Parse()
	if err := run(recommended, kubeconfig, certificate, privateKey, file, port); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(recommended *options.RecommendedOptions, kubeconfig, certificate, privateKey, file string, port int) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var kinds []Kind
	if err := json.Unmarshal(text, &kinds); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	metav1.AddToGroupVersion(scheme, version)
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"},
		&metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	internal := schema.GroupVersion{Group: version.Group, Version: runtime.APIVersionInternal}
	for _, kind := range kinds {
		scheme.AddKnownTypeWithName(version.WithKind(kind.Kind), &Application{})
		scheme.AddKnownTypeWithName(version.WithKind(kind.Kind+"List"), &List{})
		scheme.AddKnownTypeWithName(internal.WithKind(kind.Kind), &Application{})
		scheme.AddKnownTypeWithName(internal.WithKind(kind.Kind+"List"), &List{})
	}
	// All kinds and versions have one Go type, and admission converts to the version of the request.
	convert := func(from, to any, _ conversion.Scope) error {
		*to.(*Application) = *from.(*Application).copy()
		return nil
	}
	if err := scheme.AddConversionFunc((*Application)(nil), (*Application)(nil), convert); err != nil {
		return err
	}
	if err := scheme.SetVersionPriority(version); err != nil {
		return err
	}
	codecs := serializer.NewCodecFactory(scheme)

	recommended.SecureServing.BindAddress = net.IPv4zero
	recommended.SecureServing.BindPort = port
	recommended.SecureServing.ServerCert.CertKey = options.CertKey{CertFile: certificate, KeyFile: privateKey}
	recommended.Authentication.RemoteKubeConfigFile = kubeconfig
	recommended.Authorization.RemoteKubeConfigFile = kubeconfig
	recommended.CoreAPI.CoreAPIKubeconfigPath = kubeconfig

	config := genericapiserver.NewRecommendedConfig(codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	recommended.ExtraAdmissionInitializers = func(config *genericapiserver.RecommendedConfig) ([]admission.PluginInitializer, error) {
		client, err := kubernetes.NewForConfig(config.ClientConfig)
		return []admission.PluginInitializer{&resolver{client: client}}, err
	}
	namer := openapinamer.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions(kinds), namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions(kinds), namer)
	config.OpenAPIConfig.Info.Title, config.OpenAPIV3Config.Info.Title = "applications", "applications"
	if err := recommended.ApplyTo(config); err != nil {
		return err
	}
	server, err := config.Complete().New("applications-api", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return err
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(version.Group, scheme, metav1.ParameterCodec, codecs)
	shared, served := &store{revision: 1}, map[string]rest.Storage{}
	for _, kind := range kinds {
		served[kind.Plural] = newStorage(kind, shared)
	}
	group.VersionedResourcesStorageMap[version.Version] = served
	if err := server.InstallAPIGroup(&group); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return server.PrepareRun().RunWithContext(ctx)
}
