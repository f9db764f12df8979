// An extender that decides nothing: what any extender costs a cluster at least, in a fast language and without a ledger,
// a watch or a log. filter names the first hundred nodes, prioritize ranks them by their place, bind binds.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
)

const kept = 100 // names, as Fractile's filter keeps

type asked struct {
	NodeNames []string
}

type score struct {
	Host  string
	Score int64
}

type binding struct {
	PodName, PodNamespace, PodUID, Node string
}

// As long as a placement of one slice.
const annotation = `{"version":1,"node":"node-00000.pool-a.example.internal","containers":[{"name":"main","slices":[{"card":"GPU-00000000-0000-0000-0000-000000000000","memory":4096}]}]}`

func main() {
	listen := flag.String("listen", "", "address")
	cert := flag.String("cert", "", "certificate")
	key := flag.String("key", "", "its key")
	ca := flag.String("ca", "", "authority of the API server and of kube-scheduler")
	api := flag.String("api", "", "URL of the API server")
	token := flag.String("token", "", "file with the token to call it by")
	http2 := flag.Bool("http2", false, "offer HTTP/2")
	flag.Parse()

	bearer, err := os.ReadFile(*token)
	fatal(err)
	pem, err := os.ReadFile(*ca)
	fatal(err)
	authority := x509.NewCertPool()
	authority.AppendCertsFromPEM(pem)
	caller := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority}, ForceAttemptHTTP2: true}}

	http.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/metrics", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/scheduler/filter", func(w http.ResponseWriter, r *http.Request) {
		var a asked
		read(r, &a)
		a.NodeNames = a.NodeNames[:min(kept, len(a.NodeNames))]
		write(w, a)
	})
	http.HandleFunc("/scheduler/prioritize", func(w http.ResponseWriter, r *http.Request) {
		var a asked
		read(r, &a)
		scores := make([]score, len(a.NodeNames))
		for i, name := range a.NodeNames {
			scores[i] = score{name, int64(i % 10)}
		}
		write(w, scores)
	})
	http.HandleFunc("/scheduler/bind", func(w http.ResponseWriter, r *http.Request) {
		var b binding
		read(r, &b)
		problem := ""
		if err := bind(caller, *api, string(bearer), b); err != nil {
			problem = err.Error()
		}
		write(w, map[string]string{"Error": problem})
	})

	server := &http.Server{Addr: *listen, TLSConfig: &tls.Config{ClientCAs: authority, ClientAuth: tls.VerifyClientCertIfGiven}}
	if !*http2 {
		server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	fatal(server.ListenAndServeTLS(*cert, *key))
}

func bind(caller *http.Client, api, bearer string, b binding) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1",
		"kind":       "Binding",
		"metadata": map[string]any{
			"name": b.PodName, "namespace": b.PodNamespace, "uid": b.PodUID,
			"annotations": map[string]string{"floor.example/placement": annotation},
		},
		"target": map[string]string{"apiVersion": "v1", "kind": "Node", "name": b.Node},
	})
	fatal(err)
	url := fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s/binding", api, b.PodNamespace, b.PodName)
	request, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	fatal(err)
	request.Header.Set("Authorization", "Bearer "+bearer)
	request.Header.Set("Content-Type", "application/json")
	answer, err := caller.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= 300 {
		err = fmt.Errorf("the API server says %d: %s", answer.StatusCode, said)
	}
	return err
}

func read(r *http.Request, into any) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		log.Print(err)
	}
}

func write(w http.ResponseWriter, what any) {
	body, err := json.Marshal(what)
	fatal(err)
	w.Header().Set("Content-Type", "application/json")
	w.Write(body)
}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
