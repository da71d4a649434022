// Uses a registry with franz-go's client: `schemaclients URL INPUT`, a JSON object as output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/sr"
)

type request struct {
	Subject, Other, First, Second, Incompatible, Referring string
}

// check ends the program with an error that is not expected.
func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// code returns the error code of the registry; 0 without an error.
func code(err error) int {
	var refused *sr.ResponseError
	if errors.As(err, &refused) {
		return refused.ErrorCode
	}
	check(err)
	return 0
}

func main() {
	client, err := sr.NewClient(sr.URLs(os.Args[1]))
	check(err)
	var in request
	check(json.Unmarshal([]byte(os.Args[2]), &in))
	ctx := context.Background()
	found := map[string]any{}

	first, err := client.CreateSchema(ctx, in.Subject, sr.Schema{Schema: in.First})
	check(err)
	second, err := client.CreateSchema(sr.WithParams(ctx, sr.Normalize), in.Subject, sr.Schema{Schema: in.Second})
	check(err)
	found["versions_created"] = []int{first.Version, second.Version}
	looked, err := client.LookupSchema(ctx, in.Subject, sr.Schema{Schema: in.First})
	check(err)
	found["looked_up"] = looked.ID == first.ID && looked.Version == 1
	text, err := client.SchemaTextByID(ctx, first.ID)
	check(err)
	found["text"] = text
	textByVersion, err := client.SchemaTextByVersion(ctx, in.Subject, -1)
	check(err)
	found["latest_text"] = textByVersion
	schema, err := client.SchemaByID(ctx, second.ID)
	check(err)
	found["schema"] = schema.Schema
	types, err := client.SupportedTypes(ctx)
	check(err)
	found["types"] = types
	versions, err := client.SubjectVersions(ctx, in.Subject)
	check(err)
	found["versions"] = versions
	usages, err := client.SchemaUsagesByID(ctx, first.ID)
	check(err)
	found["usages"] = len(usages)
	subjects, err := client.SubjectsByID(ctx, first.ID)
	check(err)
	found["subjects_by_id"] = subjects
	pairs, err := client.SchemaVersionsByID(ctx, first.ID)
	check(err)
	found["versions_by_id"] = pairs

	var registered struct {
		GUID string `json:"guid"`
	}
	check(client.Do(ctx, "GET", fmt.Sprintf("/subjects/%s/versions/1", in.Subject), nil, &registered))
	byGUID, err := client.SchemaByGUID(ctx, registered.GUID)
	check(err)
	found["by_guid"] = byGUID.Schema.Schema
	ids, err := client.SchemaIDsByGUID(ctx, registered.GUID)
	check(err)
	found["ids_by_guid"] = len(ids) == 1 && ids[0].ID == first.ID

	all, err := client.AllSchemas(ctx)
	check(err)
	ours := 0
	for _, each := range all {
		if each.Subject == in.Subject {
			ours++
		}
	}
	found["among_all"] = ours
	var stats struct {
		Subjects int `json:"subjects"`
	}
	check(client.Do(ctx, "GET", "/stats", nil, &stats))
	found["stats"] = stats.Subjects > 0
	var metadata struct {
		Version string
		Scope   struct{ Clusters map[string]string }
	}
	check(client.Do(ctx, "GET", "/v1/metadata/id", nil, &metadata))
	check(client.Do(ctx, "GET", "/v1/metadata/version", nil, &metadata))
	found["metadata"] = metadata.Version != "" && metadata.Scope.Clusters["kafka-cluster"] != ""

	referring, err := client.CreateSchema(ctx, in.Other, sr.Schema{
		Schema:     in.Referring,
		References: []sr.SchemaReference{{Name: "Parcel", Subject: in.Subject, Version: 1}},
	})
	check(err)
	references, err := client.SchemaReferences(ctx, in.Subject, 1)
	check(err)
	found["referring"] = len(references) == 1 && references[0].ID == referring.ID

	report, err := client.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), in.Subject, -1, sr.Schema{Schema: in.Incompatible})
	check(err)
	found["is_compatible"], found["reasons"] = report.Is, len(report.Messages) > 0
	_, err = client.CreateSchema(ctx, in.Subject, sr.Schema{Schema: in.Incompatible})
	found["incompatible"] = code(err)
	_, err = client.CreateSchema(ctx, in.Subject, sr.Schema{Schema: "{"})
	found["invalid"] = code(err)

	level := client.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFull}, in.Subject)[0]
	check(level.Err)
	level = client.Compatibility(ctx, in.Subject)[0]
	check(level.Err)
	found["level"] = level.Level.String()
	check(client.ResetCompatibility(ctx, in.Subject)[0].Err)
	found["global_level"] = client.Compatibility(ctx)[0].Level.String()

	mode := client.SetMode(ctx, sr.ModeReadOnly, in.Subject)[0]
	check(mode.Err)
	found["mode"] = client.Mode(ctx, in.Subject)[0].Mode.String()
	_, err = client.CreateSchema(ctx, in.Subject, sr.Schema{Schema: `"string"`})
	found["read_only"] = code(err)
	check(client.ResetMode(ctx, in.Subject)[0].Err)

	inContext := sr.InContext(ctx, ".go")
	moved, err := client.CreateSchema(inContext, in.Subject, sr.Schema{Schema: in.First})
	check(err)
	found["first_id_of_context"] = moved.ID
	contexts, err := client.Contexts(ctx)
	check(err)
	found["contexts"] = contexts
	importing := sr.InContext(ctx, ".imported")
	check(client.SetMode(importing, sr.ModeImport, in.Subject)[0].Err)
	given, err := client.CreateSchemaWithIDAndVersion(importing, in.Subject, sr.Schema{Schema: in.First}, 777, 7)
	check(err)
	found["imported"] = []int{given.ID, given.Version}
	check(client.ResetMode(importing, in.Subject)[0].Err)

	_, err = client.DeleteSubject(ctx, in.Subject, sr.SoftDelete)
	found["referenced"] = code(err)
	_, err = client.DeleteSubject(ctx, in.Other, sr.HardDelete)
	found["not_soft_deleted"] = code(err)
	for _, subject := range []string{in.Other, in.Subject} {
		_, err = client.DeleteSubject(ctx, subject, sr.SoftDelete)
		check(err)
		_, err = client.DeleteSubject(ctx, subject, sr.HardDelete)
		check(err)
	}
	_, err = client.SubjectVersions(ctx, in.Subject)
	found["missing"] = code(err)
	check(json.NewEncoder(os.Stdout).Encode(found))
}
