package main

import (
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf16"
)

// unquote decodes a JSON string, a lone surrogate of it as the three bytes that its code point
// would have: what a Go program holds that got text from a source that does not check it.
// (encoding/json puts U+FFFD there.)
func unquote(quoted []byte) (string, error) {
	if len(quoted) < 2 || quoted[0] != '"' {
		return "", errors.New("the value is no string")
	}
	var text []byte
	begin := 1 // of what is not decoded yet
	end := len(quoted) - 1
	for i := 1; i < end; {
		first := surrogate(quoted, i)
		second := surrogate(quoted, i+6)
		switch {
		case first < 0 && quoted[i] == '\\':
			i += 2
		case first < 0:
			i++
		case utf16.DecodeRune(first, second) != '\uFFFD':
			i += 12
		default:
			piece, err := decodePiece(quoted[begin:i])
			if err != nil {
				return "", err
			}
			text = append(text, piece...)
			text = append(text, 0xE0|byte(first>>12), 0x80|byte(first>>6&0x3F), 0x80|byte(first&0x3F))
			i += 6
			begin = i
		}
	}
	piece, err := decodePiece(quoted[begin:end])
	return string(text) + piece, err
}

// decodePiece decodes a part of a JSON string without its quotes.
func decodePiece(piece []byte) (text string, err error) {
	err = json.Unmarshal([]byte(`"`+string(piece)+`"`), &text)
	return text, err
}

// surrogate returns the surrogate that is escaped at a position, and -1 where there is none.
func surrogate(quoted []byte, at int) rune {
	if at+6 > len(quoted) || quoted[at] != '\\' || quoted[at+1] != 'u' {
		return -1
	}
	number, err := strconv.ParseUint(string(quoted[at+2:at+6]), 16, 16)
	if err != nil || !utf16.IsSurrogate(rune(number)) {
		return -1
	}
	return rune(number)
}
