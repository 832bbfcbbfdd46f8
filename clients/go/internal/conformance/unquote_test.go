package main

import "testing"

func TestLoneSurrogatesKeepTheirBytes(t *testing.T) {
	for quoted, want := range map[string]string{
		`"a\ud800b"`:           "a\xed\xa0\x80b",
		`"\udfff"`:             "\xed\xbf\xbf",
		`"\ud83d\ude00"`:       "\U0001F600",
		`"\ud800\ud83d\ude00"`: "\xed\xa0\x80\U0001F600",
		`"\\ud800 \"\n é"`:     "\\ud800 \"\n é",
		`"\ud800x\u00e9"`:      "\xed\xa0\x80xé",
		`""`:                   "",
	} {
		if got, err := unquote([]byte(quoted)); err != nil || got != want {
			t.Errorf("unquote(%s) is %q, %v", quoted, got, err)
		}
	}
}
