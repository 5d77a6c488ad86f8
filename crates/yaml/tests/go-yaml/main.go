// Reads documents, one JSON string a line, and prints what sigs.k8s.io/yaml makes of each: JSON, or ERR and a reason.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		var doc string
		if err := json.Unmarshal(in.Bytes(), &doc); err != nil {
			panic(err)
		}
		out, err := yaml.YAMLToJSON([]byte(doc))
		if err != nil {
			fmt.Println("ERR", strings.ReplaceAll(err.Error(), "\n", " "))
			continue
		}
		fmt.Println(string(out))
	}
}
