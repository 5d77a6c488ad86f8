// Reads texts, one JSON string a line, and prints what Go makes of each.
//
// Without arguments: what sigs.k8s.io/yaml makes of one document: JSON, or ERR and a reason.
// With the argument "stream": what kubectl and Flux read from a file: a JSON list of the documents, null for each that
// is empty, and at its end {"ERR": reason} when they stop at a broken one.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

func document(text string) string {
	out, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return "ERR " + strings.ReplaceAll(err.Error(), "\n", " ")
	}
	return string(out)
}

func stream(text string) string {
	documents := []any{}
	// As github.com/fluxcd/pkg/ssa does; kubectl differs in the buffer's size alone.
	decoder := yamlutil.NewYAMLOrJSONDecoder(strings.NewReader(text), 2048)
	for {
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			documents = append(documents, map[string]string{"ERR": err.Error()})
			break
		}
		var value any
		if len(raw) > 0 {
			numbers := json.NewDecoder(bytes.NewReader(raw))
			numbers.UseNumber()
			if err := numbers.Decode(&value); err != nil {
				panic(err)
			}
		}
		documents = append(documents, value)
	}
	out, err := json.Marshal(documents)
	if err != nil {
		panic(err)
	}
	return string(out)
}

func main() {
	answer := document
	if len(os.Args) > 1 && os.Args[1] == "stream" {
		answer = stream
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		var text string
		if err := json.Unmarshal(in.Bytes(), &text); err != nil {
			panic(err)
		}
		fmt.Println(answer(text))
	}
}
